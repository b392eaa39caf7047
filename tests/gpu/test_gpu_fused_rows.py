"""Norms of sums, gated units, rotary embeddings and the largest of a softmax on a GPU, at full sizes, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
from kiln import kernels

torch = pytest.importorskip("torch")
functional = torch.nn.functional

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def close(got: Any, wanted: Any, factor: float = 4.0) -> None:
    """By the norm of the difference, within some steps of the result's type."""
    difference = (got.double() - wanted).norm() / wanted.norm()
    assert difference < factor * torch.finfo(got.dtype).eps, f"relative difference {difference:.2e}"


@pytest.mark.parametrize(
    ("rows", "n", "dtype"), [(3000, 8192, BF16), (1001, 8191, BF16), (999, 5000, F32), (100, 65536, BF16)]
)
def test_norms_of_sums(rows, n, dtype):
    x, residual, dy, dsum = (normal(rows, n, dtype=dtype) for _ in range(4))
    weight, bias = normal(n, dtype=dtype), normal(n, dtype=dtype)
    wide, columns = (x + residual).double().requires_grad_(), weight.double().requires_grad_()
    y, total = kernels.fused_add_rms_norm(x, residual, weight)
    wanted = functional.rms_norm(wide, (n,), columns, 1e-6)
    assert torch.equal(total, x + residual)
    close(y, wanted)
    wanted.backward(dy.double())
    for got, value in zip(
        kernels.fused_add_rms_norm_backward(dy, dsum, total, weight), (wide.grad + dsum.double(), columns.grad)
    ):
        close(got, value, 20)
    q, scales, total = kernels.fused_add_layer_norm(x, residual, weight, bias, quantize=E4M3)
    wanted = functional.layer_norm(wide.detach(), (n,), weight.double(), bias.double())
    error = ((q.double() * scales) - wanted).abs()
    assert (error <= 0.0626 * wanted.abs() + scales * 0.002).all()  # half of a step of three bits
    assert (scales.double() * 448 - wanted.abs().amax(-1, keepdim=True)).abs().max() < 1e-4


@pytest.mark.parametrize(("rows", "n"), [(2000, 14336), (1001, 4097)])
def test_gated_units(rows, n):
    gate, up, dy = (normal(rows, n) for _ in range(3))
    given = [x.double().requires_grad_() for x in (gate, up)]
    wanted = functional.silu(given[0]) * given[1]
    wanted.backward(dy.double())
    close(kernels.swiglu(gate, up), wanted)
    close(kernels.swiglu(torch.cat([gate, up], -1)), wanted)
    for got, x in zip(kernels.swiglu_backward(dy, gate, up), given):
        close(got, x.grad)
    close(kernels.geglu(gate, up), functional.gelu(gate.double()) * up.double())


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embeddings(interleaved):
    x, angles = normal(3, 1000, 13, 128), torch.rand(1200, 48, device="cuda") * 6
    places = torch.randint(0, 1200, (3, 1000), device="cuda")
    wide, (a, b) = x.double(), ((slice(0, 96, 2), slice(1, 96, 2)) if interleaved else (slice(0, 48), slice(48, 96)))
    c, s = (f(angles)[places][:, :, None].double() for f in (torch.cos, torch.sin))
    wanted = wide.clone()
    wanted[..., a], wanted[..., b] = wide[..., a] * c - wide[..., b] * s, wide[..., b] * c + wide[..., a] * s
    close(kernels.rotary_embedding(x, angles.cos(), angles.sin(), interleaved, positions=places), wanted)
    kernels.rotary_embedding(x, angles.cos(), angles.sin(), interleaved, True, positions=places)
    close(x, wanted)


@pytest.mark.parametrize(("rows", "n", "k"), [(5000, 256, 8), (5000, 60, 6), (300, 4000, 100), (50, 128256, 20)])
def test_largest_of_a_softmax(rows, n, k):
    x = normal(rows, n, dtype=F32).round(decimals=2)  # many equals
    chances = torch.softmax(x.double(), -1)
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices[:, :k]
    wanted = chances.gather(-1, order)
    for renormalize in (False, True):
        values, columns = kernels.topk_softmax(x, k, renormalize)
        assert torch.equal(columns.long(), order)
        close(values, wanted / wanted.sum(-1, keepdim=True) if renormalize else wanted, 20)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize(("shape", "dtype"), [((1001, 8192), BF16), ((3, 130, 96), F32), ((64, 65536), BF16)])
def test_rows_in_blocks(name: str, shape: tuple[int, ...], dtype: Any):
    """Bit for bit as on the CPU target, with scale factors in rows and in atoms."""
    x = normal(*shape, dtype=dtype)
    for layout in ("rows", "atoms"):
        own = kernels.quantize(x, name, scale_layout=layout)
        with kiln.target("cpu"):
            wanted = kernels.quantize(x.cpu(), name, scale_layout=layout)
        for got, right in zip(own, wanted):
            assert torch.equal(got.cpu().view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_norms_in_blocks(name: str):
    """In one pass, nearly the bytes of the result in f32 that is quantised by itself; and as operands of a GEMM."""
    x, weight = normal(1001, 8192), normal(8192)
    data, scales = kernels.rms_norm(x, weight, quantize=name)
    plain = kernels.rms_norm(x, weight, out=torch.empty(x.shape, device="cuda", dtype=F32))
    same, _ = kernels.quantize(plain, name)
    assert (data.view(torch.uint8) == same.view(torch.uint8)).double().mean() > 0.98
    got = kernels.gemm(data, data.mT, scale_a=scales, scale_b=scales, out_dtype=F32)
    close_to = plain.double() @ plain.double().mT
    assert (got.double() - close_to).norm() / close_to.norm() < 0.2
