"""The gallery's examples on a GPU, beside PyTorch, at sizes of many blocks and at sizes that divide nothing."""

from __future__ import annotations

from typing import Any

import pytest
from example_running import load

torch = pytest.importorskip("torch")

SIZES: dict[str, list[dict[str, Any]]] = {
    "transpose": [
        {"m": m, "n": n, "dtype": dtype}
        for m, n in ((1024, 2048), (1023, 2049), (1, 5000))
        for dtype in ("float32", "float16", "uint8")
    ],
    "scan": [{"count": count, "dtype": "int32"} for count in (1, 4097, (1 << 22) - 1, 1 << 24)],
    "convolution": [
        {"n": 3, "h": 19, "c": 72, "k": 40},
        {"n": 2, "h": 17, "c": 64, "k": 65, "stride": 2},
        {"n": 5, "h": 14, "c": 8, "k": 16, "r": 1, "padding": 0},
    ],
}


@pytest.mark.parametrize(
    ("name", "size"), [pytest.param(name, size, id=f"{name}-{size}") for name, sizes in SIZES.items() for size in sizes]
)
def test_an_example_agrees_with_its_reference(name, size):
    example = load(f"{name}.py")
    torch.manual_seed(0)
    inputs = example.get_inputs(**size)
    exact = name != "convolution"
    torch.testing.assert_close(
        example.kernel_fn(*inputs), example.reference_fn(*inputs), rtol=0 if exact else 1e-2, atol=0 if exact else 1e-1
    )


@pytest.mark.parametrize("bins", [1, 16, 256, 8192])
@pytest.mark.parametrize("count", [3, (1 << 20) + 5])
def test_a_histogram_counts_every_element(bins, count):
    # `x * bins` is exact for powers of two; `torch.histc` counts in float32, and not exactly beyond 2^24
    x = torch.rand(count, device="cuda")
    assert torch.equal(load("histogram.py").kernel_fn(x, bins), torch.bincount((x * bins).int(), minlength=bins).int())


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs WGMMA: sm_90a"
)
@pytest.mark.parametrize("size", [(1, 128, 128), (3, 256, 1024), (16, 4096, 4096)])
def test_the_attention_that_fits_a_slide(size):
    example = load("hopper/attention_slide.py")
    operands = example.tensors(*size)
    example.attention(*operands)
    assert example.check(*operands) < 1
