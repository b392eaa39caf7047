"""Arrays for checks: contents, layouts, and the zones around them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kiln.workbench.verify import input_arrays
from kiln.workbench.verify.judge import findings, judge


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_kinds_of_data(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.ones((40, 50), kind)
    assert input_arrays.is_floating(x)
    input_arrays.fill(x, "normal", 0, 0)
    assert (x == 1).all()
    input_arrays.fill(x, "integers", 0, 0)
    assert set(input_arrays.numbers(x).ravel()) == {-1, 0, 1, 2, 3}
    input_arrays.fill(x, "wide", 0, 0)
    assert np.abs(input_arrays.numbers(x)).max() > 100
    input_arrays.fill(x, "special", 0, 0)
    assert np.isnan(input_arrays.numbers(x)).any()
    again = np.ones((40, 50), kind)
    input_arrays.fill(again, "wide", 0, 0)
    input_arrays.fill(again, "special", 0, 0)
    assert input_arrays.bits(x) == input_arrays.bits(again)
    input_arrays.fill(again, "wide", 1, 0)
    assert input_arrays.bits(x) != input_arrays.bits(again)


def test_many_integers_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_arrays, "_DRAWN", 7)
    x, none = np.zeros((4, 5), "float32"), np.zeros((0, 3), "float32")
    input_arrays.fill(x, "integers", 0, 0)
    flat = x.ravel()
    assert len(set(flat[:7])) > 1
    assert (flat[7:] == flat[:-7]).all()
    input_arrays.fill(none, "integers", 0, 0)


def test_integers_are_left_alone() -> None:
    x = np.arange(6)
    input_arrays.fill(x, "wide", 0, 0)
    assert list(x) == list(range(6))
    assert (input_arrays.roundoff(x), input_arrays.roundoff(x.astype("float16"))) == (0, 2.0**-11)


@pytest.mark.parametrize("layout", input_arrays.LAYOUTS)
def test_layouts_keep_the_contents(layout: str) -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    zone = input_arrays.placed(x, layout)
    assert zone is not None
    assert np.array_equal(zone.array, x)
    strides = [step // 4 for step in zone.array.strides]
    address = zone.array.ctypes.data
    assert strides == {"transposed": [12, 1, 3], "rows apart": [24, 8, 1]}.get(layout, [12, 4, 1])
    assert address % 128 == (4 if layout == "shifted" else 0)


def test_what_cannot_be_laid_out() -> None:
    x = np.arange(5.0)
    assert input_arrays.placed(x, "transposed") is None
    apart = input_arrays.placed(x, "rows apart")
    assert apart is not None
    assert apart.array.strides == (16,)
    assert np.array_equal(apart.array, x)
    assert input_arrays.placed(np.broadcast_to(x, (3, 5))) is None
    assert input_arrays.placed(x[::-1]) is None


def test_zones_see_what_changes() -> None:
    zone = input_arrays.placed(np.ones((4, 6), "float16"), "rows apart")
    assert zone is not None
    assert (zone.unchanged(), zone.spilled()) == (True, False)
    zone.array[1, 2] = 3
    assert (zone.unchanged(), zone.spilled()) == (False, False)
    gap = np.lib.stride_tricks.as_strided(zone.array, (8, 6), (12, 2))
    gap[1, 0] = 3
    assert zone.spilled()


def test_empty_memory_is_poisoned() -> None:
    plain = np.empty
    with input_arrays.poisoned_memory() as zones:
        x = np.empty((3, 4), "float16")
        y = np.empty_like(np.zeros(5, ml_dtypes.bfloat16))
        np.empty(0)
    assert np.empty is plain
    assert np.isnan(x).all()
    assert np.isnan(y.astype("float32")).all()
    assert len(zones) == 2
    np.lib.stride_tricks.as_strided(x, (20,), (2,))[-1] = 1
    assert [zone.spilled() for zone in zones] == [True, False]


@pytest.mark.torch
def test_the_same_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4)
    for layout, strides in (("", (12, 4, 1)), ("transposed", (12, 1, 3)), ("rows apart", (24, 8, 1))):
        zone = input_arrays.placed(x, layout)
        assert zone.array.stride() == strides
        assert torch.equal(zone.array, x)
        zone.array[0, 0, 0] = 9
        assert (zone.unchanged(), zone.spilled()) == (False, False)
    input_arrays.fill(x, "integers", 0, 0)
    assert set(input_arrays.numbers(x).ravel()) <= {-1, 0, 1, 2, 3}
    with input_arrays.poisoned_memory() as zones:
        assert torch.isnan(torch.empty_like(x)).all()
        assert torch.isnan(x.new_empty(3)).all()
        torch.zeros(3)
    assert len(zones) == 2
    with input_arrays.computing_in_fp64():
        wide = [x.float(), x.to(torch.float16), torch.zeros(3), torch.zeros(3, dtype=torch.float32), x.double().half()]
    assert {each.dtype for each in wide} == {torch.float64}
    assert torch.zeros(1).dtype == torch.float32
    # Judged where they lie, and with the same result.
    want = torch.randn(30, 20, dtype=torch.float16)
    got = want.clone()
    got[3] = 0
    one, other = (
        judge(*each) for each in ((got, want, want.double()), (got.numpy(), want.numpy(), want.double().numpy()))
    )
    assert isinstance(one.wrong, torch.Tensor)
    assert np.array_equal(one.wrong.numpy(), other.wrong)
    assert (one.error, one.bound) == (other.error, other.bound)
    assert findings(got, want, one) == findings(got.numpy(), want.numpy(), other)
