"""Copies of pixels as convolutions take them, on a GPU, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import PROBLEMS, Convolution, columns, forward, scattered, whole_tiles

from kiln import Float16
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


def run(main: Any, *arrays: np.ndarray, static: bool = False) -> np.ndarray:
    """What a program leaves in the last of its arrays."""
    tensors = [torch.from_numpy(array.copy()).to("cuda") for array in arrays]
    main(*(from_dlpack(t, assumed_align=16) if static else t for t in tensors))
    return tensors[-1].cpu().numpy()


def numbers(shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float16)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_columns(name, static):
    problem, tile = PROBLEMS[name], (32, 16)
    x = numbers(problem.images)
    wanted = whole_tiles(problem, x, tile)
    got = run(columns(problem, tile, Float16, None), x, np.full_like(wanted, 7), static=static)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("stride", range(1, 9))
def test_every_stride(stride):
    problem, tile = Convolution((2, 19, 17, 16), (3, 3), (1, 1), (1, 1), (stride, 9 - stride), (1, 2)), (64, 16)
    x = numbers(problem.images)
    wanted = whole_tiles(problem, x, tile)
    got = run(columns(problem, tile, Float16, None), x, np.full_like(wanted, 7))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("tile", "kind", "blocks"), [((128, 128), "SW128", 1), ((1024, 16), None, 1), ((64, 64), "SW128", 4)]
)
def test_swizzles_large_tiles_and_clusters(tile, kind, blocks):
    problem = Convolution((2, 33, 29, 136), (2, 3), (1, 0), (0, 1), (1, 1), (1, 1))
    x = numbers(problem.images)
    wanted = whole_tiles(problem, x, tile)
    got = run(columns(problem, tile, Float16, kind, blocks), x, np.full_like(wanted, 7))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "problem",
    [*PROBLEMS.values(), Convolution((4, 28, 28, 128), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))],
    ids=[*PROBLEMS, "large"],
)
def test_a_convolution_is_a_product(problem):
    x, weights = numbers(problem.images), numbers((72, *problem.filter, problem.images[-1]), 1)
    wanted = problem.output(x, weights)
    got = run(forward(problem), x, weights, np.zeros(wanted.shape, np.float32))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("images", "stride"), [((2, 7, 16), 1), ((2, 7, 16), 2), ((2, 5, 7, 16), (1, 3)), ((2, 3, 4, 5, 16), (2, 1, 2))]
)
def test_stores(images, stride):
    steps = stride if isinstance(stride, tuple) else (stride,)
    y = np.full(images, -1, np.float16)
    chosen = (slice(None), *(slice(None, None, s) for s in steps))
    rows = numbers((int(np.prod(y[chosen].shape[:-1])), 16))
    wanted = y.copy()
    wanted[chosen] = rows.reshape(y[chosen].shape)
    padded = np.pad(rows, [(0, -len(rows) % 16), (0, 0)], constant_values=9)
    np.testing.assert_array_equal(run(scattered((16, 16), stride), padded, y), wanted)
