"""The gallery's examples: right, and clean under the sanitizer, at sizes that divide nothing."""

from __future__ import annotations

import os

import numpy as np
import pytest
from example_running import load

import kiln

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
GALLERY = ("transpose", "histogram", "scan", "convolution")


@pytest.fixture(autouse=True)
def _compiled_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CPU_OPT", "0")


@pytest.mark.parametrize("shape", [(40, 68), (35, 33)], ids=["vectors", "elements"])
def test_transpose(shape):
    example = load("transpose.py")
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    y = np.zeros(shape[::-1], np.float32)
    with kiln.target("cpu"), kiln.sanitize():
        example.transpose(x, y)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize(("tile", "vector", "size"), [(32, 4, 4), (64, 8, 2), (128, 16, 1), (32, 1, 4), (32, 1, 2)])
def test_columns_of_a_transposed_tile_have_no_bank_conflicts(tile, vector, size):
    layout, across = load("transpose.py").tile_layout(tile, vector), tile // vector
    for i in range(vector):
        places = [(thread % across * vector + i, thread // across) for thread in range(32)]
        words = {layout(place) * size // 4 for place in places}
        assert len({word % 32 for word in words}) == len(words)


def test_histogram(monkeypatch):
    example = load("histogram.py")
    monkeypatch.setattr(example, "THREADS", 64)
    monkeypatch.setattr(example, "VECTORS", 1)
    x = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
    x[:3] = np.nan, 2, -3
    counts = np.zeros(10, np.int32)
    with kiln.target("cpu"), kiln.sanitize():
        example.histogram(x, counts, example.even_bins(-2.0, 2.0, 10), 10, 2)
    kept = x[(x >= -2) & (x <= 2)]
    want = np.minimum((kept + np.float32(2)) * np.float32(2.5), 9).astype(int)
    assert np.array_equal(counts, np.bincount(want, minlength=10))


def test_more_bins_leave_room_for_fewer_columns():
    columns = load("histogram.py").columns_for
    assert [columns(bins) for bins in (1, 256, 257, 1000, 4096, 8192, 20000)] == [32, 32, 16, 8, 2, 1, 1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("inclusive", [False, True])
def test_scan(inclusive, monkeypatch):
    example = load("scan.py")
    monkeypatch.setattr(example, "WARPS", 2)
    monkeypatch.setattr(example, "ROWS", 1)
    count = 40 * example.tile_size(4) + 3  # tiles look back over more than a warp's worth of others
    x = np.random.default_rng(0).integers(-9, 10, count).astype(np.int32)
    y, state = np.zeros(count, np.int32), np.zeros(example.words(count, 4), np.int64)
    with kiln.target("cpu"), kiln.sanitize():
        example.scan(x, y, state, inclusive)
    assert np.array_equal(y, np.cumsum(x) - (0 if inclusive else x))


def test_convolution(monkeypatch):
    example = load("convolution.py")
    monkeypatch.setattr(example, "TILE_M", 32)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((2, 9, 7, 8), (6, 3, 2, 8)))
    y = np.zeros(example.output_size(x, w, 2, 1), np.float16)
    with kiln.target("cpu"), kiln.sanitize():
        example.convolution(x, w, y, 2, 1)
    assert np.array_equal(y, example.reference(x, w, 2, 1))


def test_a_convolution_refuses_channels_that_are_no_whole_vectors():
    example = load("convolution.py")
    x, w = np.zeros((1, 4, 4, 3), np.float16), np.zeros((1, 3, 3, 3), np.float16)
    with pytest.raises(ValueError, match="3 channels"):
        example.convolution(x, w, np.zeros((1, 2, 2, 1), np.float16))


@pytest.mark.skipif(not LONG, reason="types and sizes of the whole check; set KILN_LONG_TESTS=1")
@pytest.mark.parametrize("name", GALLERY)
def test_an_example_agrees_with_numpy(name):
    load(f"{name}.py").main()
