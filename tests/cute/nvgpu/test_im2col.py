"""Copies of pixels as convolutions take them, on the CPU target, against numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from convolutions import (
    LOAD,
    MULTICAST,
    PROBLEMS,
    STORE,
    Convolution,
    by_image,
    columns,
    forward,
    scattered,
    whole_tiles,
)
from tracing_only import traced

from kiln import Float16, Float32, Int8, TFloat32, cute
from kiln.base_dsl.diagnostics import DSLUserCodeError
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.runtime import from_dlpack
from kiln.utils import hopper_helpers as sm90


def numbers(shape, dtype=np.float16):
    return (np.arange(np.prod(shape)) % 1021 - 99).reshape(shape).astype(dtype)


def gathered(problem, tile, dtype=Float16, kind=None, blocks=1, dynamic=False, backwards=False):
    """What a program copies, and what it should."""
    x = numbers(problem.images, np.dtype(dtype.__name__.lower()))
    wanted = whole_tiles(problem, x, tile)
    out = np.full_like(wanted, 7)
    given = [from_dlpack(a, assumed_align=16) for a in (x, out)]
    if dynamic:
        given = [given[0].mark_layout_dynamic(leading_dim=x.ndim - 1), given[1].mark_layout_dynamic(leading_dim=2)]
    cute.compile(columns(problem, tile, dtype, kind, blocks, backwards), *given, target="cpu")(*given)
    return out, wanted


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in PROBLEMS), ("2d_dilated", True), ("3d", True)]
)
def test_columns(name, dynamic):
    out, wanted = gathered(PROBLEMS[name], (32, 16), dynamic=dynamic)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("dtype", "tile", "kind"),
    [(Float16, (16, 64), "SW128"), (Float16, (16, 64), "SW64"), (Float32, (40, 8), "SW32"), (Int8, (300, 16), None)],
)
def test_swizzles_and_tiles_of_several_boxes(dtype, tile, kind):
    out, wanted = gathered(Convolution((2, 6, 5, 80), (2, 2), (1, 0), (0, 1), (1, 1), (1, 1)), tile, dtype, kind)
    np.testing.assert_array_equal(out, wanted)


def test_taps_backwards():
    problem = PROBLEMS["3d"]
    out, wanted = gathered(problem, (32, 16), backwards=True)
    np.testing.assert_array_equal(out, wanted[..., ::-1])


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_corners_say_what_a_filter_does(name):
    """Images ((W, H, D, N), C) have the same map, and taps (S, R, T) behind the channels."""
    problem = PROBLEMS[name]

    @cute.jit
    def main(x: cute.Tensor):
        images, mma = by_image(x), sm90_mma()
        pixels, channels, taps = make(x, **problem.options).tma_tensor.layout
        wanted = cute.make_layout((pixels.shape, (channels.shape, *taps.shape[::-1])),
                                  stride=(pixels.stride, (channels.stride, *taps.stride[::-1])))  # fmt: skip
        facts = make(x, **problem.options).atom.trait.facts
        info = make(images, tile=(16, (16,)), **problem.corners())
        assert info.tma_tensor.layout == wanted and info.atom.trait.facts == facts
        layout = cute.make_layout(((64, 8), 1, 2), stride=((16, 1), 0, 8))
        info = cute.nvgpu.make_im2col_tma_atom_A(
            LOAD,
            images,
            layout,
            (64, 8, 16),
            mma,
            problem.filter,
            problem.after,
            problem.before,
            problem.stride,
            problem.dilation,
        )
        assert info.tma_tensor.layout == wanted
        assert info.atom.trait.facts == dataclasses.replace(facts, box=(16, 64), values=1024)

    traced(main, from_dlpack(np.zeros(problem.images, np.float32), assumed_align=16))


def sm90_mma():
    """A tiled MMA of (64, 8, 8) TF32."""
    major = warpgroup.OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(TFloat32, TFloat32, major, major, Float32, (1, 1, 1), (64, 8))


def test_elements_of_the_map():
    @cute.jit
    def main(x: cute.Tensor):
        info = make(by_image(x), internal_type=TFloat32)
        assert info.atom.trait.facts.element == "tf32"

    traced(main, from_dlpack(np.zeros((2, 7, 9, 16), np.float32), assumed_align=16))


def test_blocks_of_a_cluster_share_pixels():
    out, wanted = gathered(PROBLEMS["2d"], (32, 16), blocks=2)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    "problem", [PROBLEMS["1d"], Convolution((2, 7, 9, 72), (3, 2), (1, 1), (1, 0), (1, 2), (1, 1)), PROBLEMS["3d"]]
)
def test_a_convolution_is_a_product(problem):
    x = numbers(problem.images) % 5
    weights = numbers((40, *problem.filter, problem.images[-1])) % 3
    wanted = problem.output(x, weights)
    out = np.zeros(wanted.shape, np.float32)
    given = [from_dlpack(a, assumed_align=16) for a in (x, weights, out)]
    cute.compile(forward(problem), *given, target="cpu", options="--gpu-arch sm_90a")(*given)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("images", "stride"), [((2, 7, 16), 2), ((2, 5, 7, 16), (1, 3)), ((2, 3, 4, 5, 16), (2, 1, 2))]
)
def test_stores(images, stride):
    """Of rows to every so manyth pixel."""
    steps = stride if isinstance(stride, tuple) else (stride,)
    y = np.full(images, -1, np.float16)
    chosen = (slice(None), *(slice(None, None, s) for s in steps))
    rows = numbers((int(np.prod(y[chosen].shape[:-1])), 16))
    wanted = y.copy()
    wanted[chosen] = rows.reshape(y[chosen].shape)
    padded = np.pad(rows, [(0, -len(rows) % 16), (0, 0)], constant_values=9)
    given = [from_dlpack(a, assumed_align=16) for a in (padded, y)]
    cute.compile(scattered((16, 16), stride), *given, target="cpu")(*given)
    np.testing.assert_array_equal(y, wanted)


def make(x, op=LOAD, tile=(16, 16), layout=None, **options):
    """The atom of a tile that lies in shared memory row by row."""
    layout = cute.make_layout((16, 16), stride=(16, 1)) if layout is None and tile[-1] in ("C", (16,)) else layout
    layout = cute.make_layout(tile, stride=(tile[-1], 1)[-len(tile) :]) if layout is None else layout
    return cpasync.make_im2col_tma_atom(op, x, layout, tile, **options)


def test_the_coordinate_tensor():
    """(pixels, channels, taps) -> (channel, pixel, offsets from the last mode on)."""

    @cute.jit
    def main(x: cute.Tensor):
        info = make(x, filter=(3, 2), lower_padding=1, stride=(1, 2), dilation=(4, 5))
        assert str(info.tma_tensor) == "tensor<(0,0,0,0) o (6,16,(3,2)):(1@1,1@0,(4@3,5@2))>"
        facts = info.atom.trait.facts
        assert (facts.lower, facts.upper, facts.steps, facts.box) == ((-1, -1), (-4, -7), (2, 1), (16, 16))

    traced(main, from_dlpack(np.zeros((2, 7, 9, 16), np.float16), assumed_align=16))


@pytest.mark.parametrize(
    ("shape", "options", "rule"),
    [
        ((7, 16), {}, "images are a tensor"),
        ((2, 7, 16), {"filter": (3, 3)}, "filter is .3, 3.: a static number from 1 on for each of the 1 modes"),
        ((2, 7, 16), {"stride": 9}, "stride is 9: a static number from 1 to 8"),
        ((2, 7, 16), {"dilation": 0}, "dilation is 0"),
        ((2, 7, 16), {"lower_padding": -1}, "lower_padding is -1"),
        ((2, 7, 16), {"filter": 9}, "larger than the images"),
        ((2, 300, 300, 16), {"lower_padding": (0, 129)}, "lower corner .* in 4 modes corners are -128 to 127"),
        ((2, 300, 300, 16), {"filter": (1, 200)}, "upper corner"),
        (
            (2, 300, 300, 16),
            {"filter": (1, 2), "dilation": 256, "upper_padding": 127},
            "offsets of taps are at most 255 pixels",
        ),
        ((2, 90, 90, 90, 16), {"upper_padding": 16}, "in 5 modes corners are -16 to 15"),
        ((2, 7, 16), {"tile": (16,)}, "two static numbers"),
        ((2, 2000, 16), {"tile": (1025, 16)}, "at most 1024 pixels, got 1025"),
        ((2, 7, 512), {"tile": (8, 512)}, "at most 256 channels, got 512"),
        ((2, 7, 16), {"tile": (8, 4)}, "rows of a box are multiples of 16 bytes"),
        ((2, 7, 12), {"tile": (8, 8)}, "strides are multiples of 16 bytes"),
        ((2, 7, 16), {"layout": cute.make_layout((16, 16))}, "channels are contiguous"),
        ((2, 7, 16), {"num_multicast": 3}, "not cut into 3 equal parts"),
        ((2, 7, 16), {"op": cpasync.CopyBulkTensorTileG2SOp()}, "makes no atoms of CopyBulkTensorTileG2SOp"),
        ((2, 7, 16), {"op": "load"}, "no TMA copy"),
        ((2, 7, 16), {"op": STORE, "filter": 2}, "a store has no filter and no padding"),
        ((2, 7, 16), {"op": STORE, "upper_padding": 1}, "a store has no filter and no padding"),
    ],
)
def test_refused(shape, options, rule):
    with pytest.raises(DSLUserCodeError, match=rule):
        traced(cute.jit(lambda x: make(x, **options)), from_dlpack(np.zeros(shape, np.float16), assumed_align=16))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"filter": 3}, "take the parameters with whd and srt"),
        ({"lower_corner_whd": 0.5}, "lower_corner_whd is 0.5: a static number for each of the 2 modes"),
        ({"stride_whd": (1, 9)}, "stride_whd is .1, 9.: a static number from 1 to 8"),
        ({"stride_srt": 0}, "the distance of taps is not 0"),
        ({"upper_padding_whd": 0, "upper_corner_whd": 2}, "leave a filter of .-1, -1. taps"),
        ({"stride_srt": -1, "lower_padding_whd": 1}, "not negative: the filter .2, 2. starts at .0, 0."),
        ({"internal_type": Float16}, "take a type as wide"),
        ({"internal_type": "half"}, "internal_type is a numeric type"),
        ({"tile": (8, "C")}, "two static numbers"),
    ],
)
def test_corners_refused(options, rule):
    with pytest.raises(DSLUserCodeError, match=rule):
        traced(cute.jit(lambda x: make(by_image(x), **options)), np.zeros((2, 7, 9, 16), np.float32))


def test_corners_belong_to_images():
    with pytest.raises(DSLUserCodeError, match="stride_srt belongs to images"):
        traced(cute.jit(lambda x: make(x, stride_srt=1)), np.zeros((2, 7, 9, 16), np.float32))


def test_channels_that_are_not_contiguous_are_refused():
    with pytest.raises(DSLUserCodeError, match="static stride 1"):
        traced(cute.jit(make), np.zeros((2, 16, 7), np.float16).transpose(0, 2, 1))


@pytest.mark.parametrize("op", [LOAD, MULTICAST, STORE])
def test_operations_are_for_images(op):
    layout = cute.make_layout((16, 16), stride=(16, 1))
    with pytest.raises(DSLUserCodeError, match="make_tiled_tma_atom makes no atoms of CopyBulkTensorIm2Col"):
        traced(cute.jit(lambda x: cpasync.make_tiled_tma_atom(op, x, layout, (16, 16))), np.zeros((32, 16), np.float16))
    with pytest.raises(DSLUserCodeError, match="its atoms belong to a tensor"):
        cute.make_copy_atom(op, Float16)


def test_maps_of_images_are_not_edited():
    @cute.kernel
    def kernel(info: cpasync.TmaInfo, x: cute.Tensor):
        cpasync.update_tma_descriptor(info.atom, x, x.iterator)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(make(x), x).launch(grid=1, block=32)

    with pytest.raises(DSLUserCodeError, match="takes atoms of tiles, got one of pixels"):
        traced(main, np.zeros((2, 7, 16), np.float16))


def test_images_have_no_picture():
    def main(x: cute.Tensor):
        assert make(x)._repr_svg_() is None

    traced(cute.jit(main), np.zeros((2, 7, 16), np.float16))
