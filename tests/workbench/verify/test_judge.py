"""The error model, and what is said of wrong results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kiln.workbench.verify.judge import findings, in_words, judge
from kiln.workbench.verify.lost_inputs import lost


def product(dtype: str, k: int = 512) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands of a product in a type, and the product in fp64."""
    draw = np.random.default_rng(0)
    kind = getattr(ml_dtypes, dtype, dtype)
    a, b = (draw.standard_normal(shape).astype(kind) for shape in ((16, k), (k, 24)))
    return a, b, a.astype("float64") @ b.astype("float64")


def summed(a: np.ndarray, b: np.ndarray, kind) -> np.ndarray:
    """The product with every sum rounded to a type."""
    total = np.zeros((len(a), b.shape[1]), kind)
    for x, y in zip(a.T, b):
        total = (total + np.outer(x.astype("float32"), y.astype("float32"))).astype(kind)
    return total


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_another_order_of_sums_is_right_and_a_narrower_type_is_not(dtype: str) -> None:
    a, b, truth = product(dtype)
    kind = a.dtype
    reference = (a.astype("float32") @ b.astype("float32")).astype(kind)
    assert judge(summed(a, b, "float32").astype(kind), reference, truth).ok
    narrow = summed(a, b, "float16" if dtype == "float32" else kind).astype(kind)
    judged = judge(narrow, reference, truth)
    assert not judged.ok
    assert judged.error > judged.bound
    assert "an accumulator of too narrow a type" in findings(narrow, reference, judged)["look"][0]


def test_integers_are_compared_bit_for_bit() -> None:
    x = np.arange(12, dtype="float16")
    truth = x.astype("float64")
    near = np.nextafter(x, np.float16(100))
    assert judge(near, x, truth).ok
    assert not judge(near, x, truth, exact=True).ok
    # Where the reference itself is not exact, the model decides.
    assert judge(near, near, truth, exact=True).how != "exact"
    assert judge(x, x, truth + 0.25, exact=True).how != "exact"


def test_patterns_of_what_is_not_finite() -> None:
    want = np.array([1, np.nan, np.inf, -np.inf, 2], "float32")
    truth = want.astype("float64")
    assert judge(want.copy(), want, truth).ok
    for place, value in ((0, np.nan), (1, 0), (2, -np.inf), (3, 1e30), (4, np.inf)):
        got = want.copy()
        got[place] = value
        assert list(np.flatnonzero(judge(got, want, truth).wrong)) == [place]


def test_given_tolerances() -> None:
    want = np.array([1.0, 100.0, np.nan])
    assert judge(want * 1.001, want, want, {"rtol": 1e-2, "atol": 0}).ok
    assert not judge(want + 0.05, want, want, {"rtol": 1e-2, "atol": 0}).ok
    assert not judge(want * (1 + 1e-15), want, want, "exact").ok
    assert judge(want, want, want, "exact").ok
    # Integers are equal or wrong.
    assert not judge(np.array([1, 2]), np.array([1, 3]), np.array([1, 3])).ok


def test_a_reference_that_is_no_oracle_is_noted() -> None:
    x = np.ones(4, "float32")
    judged = judge(x * (1 + 2e-6), x, x)
    assert judged.ok
    assert "define oracle_fn" in judged.notes[0]


@pytest.mark.parametrize(
    ("change", "where", "look"),
    [
        (lambda x: x.__setitem__((slice(None), slice(-3, None)), 0), "whole columns 29 to 31, the last 3 (of 32)", "they are 0"),
        (lambda x: x.__setitem__(slice(1, None, 4), np.nan), "whole rows 1, 5, ...: those that are 1 modulo 4 (of 16)", "never written"),
        (lambda x: x.__imul__(-1), "all elements", "they have the other sign"),
        (lambda x: x.__imul__(0.5), "all elements", "they are 0.5 times what is expected"),
        (lambda x: x.__setitem__(slice(None), np.roll(x, 1, 1)), "all elements", "at the previous column: off by one"),
        (lambda x: x.__setitem__((slice(8, 16), slice(0, 8)), 7), "1 of 8 tiles of 8x8: (1, 0)", None),
        (lambda x: x.__setitem__((3, 4), np.inf), "row 3 (of 16)", "1 are infinite"),
    ],
)  # fmt: skip
def test_where_and_how(change, where: str, look: str | None) -> None:
    want = np.random.default_rng(0).uniform(1, 2, (16, 32)).astype("float32")
    got = want.copy()
    change(got)
    judged = judge(got, want, want.astype("float64"))
    found = findings(got, want, judged, tile=(8, 8))
    assert where in found["where"]
    assert look is None or look in " ".join(found["look"])
    assert len(found["worst"]) <= 5
    assert found["first"]["index"] == [int(i) for i in np.argwhere(judged.wrong)[0]]


def test_numbers_in_words() -> None:
    for numbers, extent, said in [
        ([7], 8, "7, the last (of 8)"),
        ([3], 8, "3 (of 8)"),
        (range(4, 8), 16, "4 to 7 (of 16)"),
        (range(1, 64, 4), 64, "1, 5, ...: those that are 1 modulo 4 (of 64)"),
        ([i for i in range(512) if i % 256 >= 224], 512, "that are 224 to 255 modulo 256 (of 512)"),
        ([8, 9, 13], 64, "between 8 and 15 (of 64)"),
        ([0, 5, 33, 60], 64, "0, 5, 33, 60, ...: 4 of 64"),
    ]:
        assert in_words(np.array(list(numbers)), extent) == said


def test_elements_that_are_lost() -> None:
    x = np.ones((8, 40), "float32")
    reference = lambda x: [x.sum(1)]

    def kernel(x):
        kept = x.copy()
        kept[:, 32:36] = 0
        return [kept.sum(1)]

    [said] = lost([x], kernel, reference)
    assert said.startswith("columns 32 to 35 (of 40) of input 0 do not count as they should: a single 1 at [")
    assert said.endswith("gives 0, expected 1")
    assert lost([x], reference, reference) == []
    assert lost([x], lambda x: [x.sum(1) + 1], reference) == []  # all of them are wrong
    b = np.ones((24, 40), "float32")
    product = lambda a, b: [a @ b.T]
    [said] = lost([x, b], lambda a, b: [a @ (b * (np.arange(40) % 8 != 3)).T], product)[:1]
    assert "those that are 3 modulo 8" in said
