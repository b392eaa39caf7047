"""The library's GEMM with tcgen05 on a GPU with tensor memory: all configs and types of the CPU target's tests, and large sizes."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import kernels

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] not in (10, 11),
    reason="needs tcgen05: compute capability 10.0, 10.3 or 11.0",
)

C = kernels.Sm100GemmConfig
CONFIGS = {
    "pair": C(),
    "pair, dynamic": C(dynamic=True),
    "pair, short K": C((256, 128, 64), (2, 1), 6, 2, 4),
    "clusters of 4": C(cluster_shape_mn=(4, 1), dynamic=True),
    "clusters of 2 x 2": C(cluster_shape_mn=(2, 2)),
    "two accumulators": C((512, 256, 64), (2, 1), 4, 1, 2, 4),
    "two accumulators, dynamic": C((512, 256, 64), (2, 1), 4, 1, 2, 4, dynamic=True),
    "one CTA": C((128, 128, 64), (1, 1), 5, 2, 2, pair=False),
    "one CTA, dynamic": C((128, 256, 64), (1, 1), 4, 2, 2, pair=False, dynamic=True),
    "few rows": C((128, 64, 64), (1, 1), 8, 2, 2, pair=False, swap_ab=True),
    "few rows, pair": C((256, 32, 64), (2, 1), 8, 2, 2, swap_ab=True),
    "split-K": C((128, 128, 64), (1, 1), 5, 2, 2, pair=False, split_k=4),
}
SIZES = [(64, 4096, 4096), (1000, 1016, 520), (8192, 8192, 256), (4096, 4096, 4096)]


def matrix(rows: int, columns: int, dtype: Any) -> Any:
    """Normal data, or small integers; zeros run faster and prove nothing."""
    if dtype.is_floating_point:
        return torch.randn(rows, columns, device="cuda").to(dtype)
    return torch.randint(-9, 10, (rows, columns), device="cuda").to(dtype)


def check(got: Any, a: Any, b: Any) -> None:
    """Compare with f64: within the rounding of the result's type, and of sums of f32 that tensor cores truncate."""
    wanted = a.double() @ b.double()
    step = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    allowed = step * wanted.abs() + 2.0**-17 * (a.double().abs() @ b.double().abs()) * got.dtype.is_floating_point
    assert ((got.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name: str, size: tuple[int, int, int]):
    m, n, k = size
    a, b = matrix(m, k, torch.bfloat16), matrix(n, k, torch.bfloat16).T
    for _ in range(3):  # the same bits each time, whichever cluster takes which tile
        got = kernels.gemm(a, b, config=CONFIGS[name])
        check(got, a, b)
        assert torch.equal(got, kernels.gemm(a, b, config=CONFIGS[name]))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8], ids=str
)
def test_types(dtype: Any, layout: str):
    m, n, k = 1040, 1072, 528
    a = matrix(m, k, dtype) if layout[0] == "N" else matrix(k, m, dtype).T
    b = matrix(k, n, dtype) if layout[1] == "N" else matrix(n, k, dtype).T
    options = {"precision": "tf32"} if dtype is torch.float32 else {}
    if dtype is torch.float32:  # the same bits in TF32
        a, b = (x.bfloat16().float() for x in (a, b))
    check(kernels.gemm(a, b, **options), a, b)


def test_the_epilogue():
    m, n, k = 1040, 1072, 528
    a, b, c = matrix(m, k, torch.bfloat16), matrix(n, k, torch.bfloat16).T, matrix(m, n, torch.float32)
    bias = matrix(1, n, torch.float32)[0]
    got, squares = kernels.gemm(
        a, b, c=c, bias=bias, activation="relu", out_dtype=torch.float32, row_reduction="squares"
    )
    wanted = torch.relu(a.double() @ b.double() + c.double() + bias.double())
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(squares.double(), (wanted**2).sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [(256, 256, 512), (1000, 1016, 1056), (4096, 4096, 4096)], ids=str)
def test_scales_of_vectors(size: tuple[int, int, int]):
    m, n, k = size
    a, b = matrix(m, k, torch.float8_e4m3fn), matrix(n, k, torch.float8_e4m3fn)
    of_a, of_b = (torch.randint(121, 134, (rows, k // 32), device="cuda", dtype=torch.uint8) for rows in (m, n))
    got = kernels.gemm(a, b.T, scale_a=of_a.view(torch.float8_e8m0fnu), scale_b=of_b.view(torch.float8_e8m0fnu).T)
    left, right = (
        x.double() * torch.exp2(own.double() - 127).repeat_interleave(32, 1) for x, own in ((a, of_a), (b, of_b))
    )
    error = (got.double() - left @ right.T).abs() / (left.abs() @ right.abs().T)
    assert error.max() < 2.0**-16


GROUPS = {
    "pair": C(),
    "two accumulators": C((512, 256, 64), (2, 1), 4, 1, 2, 4),
    "one CTA": C((128, 128, 64), (1, 1), 5, 2, 2, pair=False),
    "few rows": C((128, 64, 64), (1, 1), 8, 2, 2, pair=False, swap_ab=True),
}


@pytest.mark.parametrize("name", [None, *GROUPS])
def test_groups(name: str | None):
    """That begin and end anywhere, some without rows; rows behind the last stay as they are."""
    sizes = [0, 1, 127, 128, 129, 700, 0, 33, 4096]
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    rows = int(ends[-1])
    a, b = matrix(rows + 9, 1024, torch.bfloat16), torch.randn(len(sizes), 1040, 1024, device="cuda").bfloat16().mT
    out = torch.full((rows + 9, 1040), 7.0, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        kernels.grouped_gemm(a, b, offsets=ends, out=out, config=GROUPS.get(name or ""))
        for group, last in enumerate(ends.tolist()):
            check(out[last - sizes[group] : last], a[last - sizes[group] : last], b[group])
        assert (out[rows:] == 7).all()


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_quantised_rows_of_groups(name: str):
    """The same bits as GEMMs of each group's rows."""
    sizes = [5, 0, 300, 1024]
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    a, of_a = kernels.quantize(matrix(int(ends[-1]), 2048, torch.bfloat16), name, scale_layout="rows")
    b, of_b = kernels.quantize(torch.randn(4, 1152, 2048, device="cuda").bfloat16(), name, scale_layout="rows")
    got = kernels.grouped_gemm(a, b.mT, offsets=ends, scale_a=of_a, scale_b=of_b.mT)
    for group, last in enumerate(ends.tolist()):
        rows = slice(last - sizes[group], last)
        if sizes[group]:
            alone = kernels.gemm(a[rows], b[group].mT, scale_a=of_a[rows], scale_b=of_b[group].mT)
            torch.testing.assert_close(got[rows], alone, rtol=2.0**-18, atol=1e-3)
