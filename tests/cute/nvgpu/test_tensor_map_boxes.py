# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Tensor maps: which box and which modes follow from a tensor and the layout of its tiles in shared memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tracing_only import traced

import kiln
from kiln import BFloat16, Float8E4M3FN, Float16, Float32, Int16, Int32, TFloat32, Uint8, cute, utils
from kiln.base_dsl.diagnostics import DSLUserCodeError
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.nvgpu.warpgroup import SmemLayoutAtomKind as Kind
from kiln.cute.runtime import from_dlpack, make_ptr
from kiln.utils import LayoutEnum

LOAD = cpasync.CopyBulkTensorTileG2SOp()
STORE = cpasync.CopyBulkTensorTileS2GOp()
MULTICAST = cpasync.CopyBulkTensorTileG2SMulticastOp()


def pointer(dtype, alignment=128):
    return make_ptr(dtype, 1 << 20, cute.AddressSpace.gmem, assumed_align=alignment)


def made(dtype, layout, smem, tile, blocks=1, op=LOAD, **options):
    """The map of a tensor of a static layout: (facts, sizes, strides, coordinate tensor), the numbers from the program."""
    found = {}

    @cute.jit
    def host(p: cute.Pointer):
        info = cpasync.make_tiled_tma_atom(op, cute.make_tensor(p, layout), smem, tile, blocks, **options)
        found["info"] = info

    text = traced(host, pointer(dtype))
    facts, tensor = found["info"].atom.trait.facts, found["info"].tma_tensor
    sizes, strides = numbers(text)
    return facts, sizes, strides, str(tensor)


def numbers(text):
    """Sizes and strides of the one map in a program; names of values where they are not constants."""
    constants = {name: int(v) for name, v in re.findall(r"(%\w+) = arith.constant (-?\d+) : i64", text)}
    sizes, strides = re.search(r"tensor_map_encode\"\(%\w+, (%\w+), (%\w+)\)", text).groups()

    def values(pack):
        operands = re.search(rf"{pack} = builtin.unrealized_conversion_cast(.*?)(?: :| to)", text).group(1)
        return [constants.get(name, name) for name in re.findall(r"%\w+", operands)]

    return values(sizes), values(strides)


def smem(kind, dtype, tile, order=(0, 1)):
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, dtype), tile, order)


def k_major(m, k, batch=3):
    return cute.make_layout((m, k, batch), stride=(k, 1, m * k))


def m_major(m, k, batch=3):
    return cute.make_layout((m, k, batch), stride=(1, m, m * k))


@pytest.mark.parametrize(
    ("layout", "shared", "tile", "blocks", "box", "modes", "calls"),
    [
        (k_major(512, 256), smem(Kind.K_SW128, Float16, (128, 64)), (128, 64), 1, (64, 128, 1), ((1,), (0,), (2,)), 1),
        (k_major(512, 256), smem(Kind.K_SW128, Float16, (128, 128)), (128, 128), 1, (64, 128, 1), ((1,), (0,), (2,)), 2),
        (m_major(512, 256), smem(Kind.MN_SW128, Float16, (128, 64), (1, 0)), (128, 64), 1, (64, 64, 1), ((0,), (1,), (2,)), 2),
        (k_major(512, 256), smem(Kind.K_SW64, Float16, (128, 32)), (128, 32), 1, (32, 128, 1), ((1,), (0,), (2,)), 1),
        (k_major(512, 256), smem(Kind.K_SW128, Float16, (128, 64)), (128, 64), 2, (64, 64, 1), ((1,), (0,), (2,)), 1),
        (k_major(512, 256), smem(Kind.K_SW128, Float16, (128, 64)), (128, 64), 4, (64, 32, 1), ((1,), (0,), (2,)), 1),
    ],
    ids=["k", "two boxes", "m", "64b", "two blocks", "four blocks"],
)  # fmt: skip
def test_boxes_of_operands(layout, shared, tile, blocks, box, modes, calls):
    op = MULTICAST if blocks > 1 else LOAD
    facts, sizes, strides, _ = made(Float16, layout, shared, tile, blocks, op)
    assert (facts.box, facts.modes, facts.element) == (box, modes, "f16")
    shape, stride = layout.shape, layout.stride
    assert sizes == [shape[m] for (m,) in modes]
    assert strides == [2 * stride[m] for (m,) in modes[1:]]
    assert tile[0] * tile[1] == facts.values * calls
    assert facts.bytes * blocks == facts.values * 2


@pytest.mark.parametrize("kind", [Kind.K_INTER, Kind.K_SW32, Kind.K_SW64, Kind.K_SW128], ids=lambda k: k.name)
@pytest.mark.parametrize(
    "dtype", [Float16, BFloat16, Float32, Float8E4M3FN, Int32, Int16, Uint8], ids=lambda t: t.__name__
)
def test_element_types_and_swizzles(dtype, kind):
    row = {"K_INTER": 16, "K_SW32": 32, "K_SW64": 64, "K_SW128": 128}[kind.name] * 8 // dtype.width
    facts, sizes, strides, _ = made(dtype, k_major(512, 1024), smem(kind, dtype, (64, row)), (64, row), op=STORE)
    names = {
        Float16: "f16",
        BFloat16: "bf16",
        Float32: "f32",
        Float8E4M3FN: "u8",
        Int32: "s32",
        Int16: "u16",
        Uint8: "u8",
    }
    assert facts.element == names[dtype]
    assert facts.swizzle == {"K_INTER": "none"}.get(kind.name, kind.name[4:] + "b")
    assert facts.box == (row, 64, 1)
    assert sizes == [1024, 512, 3]
    assert strides == [1024 * dtype.width // 8, 512 * 1024 * dtype.width // 8]


def test_rows_that_lie_a_span_apart_are_copied_one_by_one():
    layout = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 32), stride=(64, 1)))
    facts, *_ = made(Float16, k_major(512, 256), layout, (8, 32))
    assert (facts.box, facts.values) == ((32, 1, 1), 32)


def test_rows_without_swizzle_are_as_long_as_the_tile():
    facts, *_ = made(
        Float16,
        cute.make_layout((512, 128), stride=(128, 1)),
        cute.make_layout((128, 128), stride=(128, 1)),
        (128, 128),
    )
    assert (facts.box, facts.swizzle, facts.values) == ((128, 128), "none", 1 << 14)


def test_modes_that_are_one_run_of_memory_are_one_mode():
    rows = cute.make_layout((64, 32), stride=(32, 1))
    facts, sizes, strides, tensor = made(Float16, rows, cute.make_layout((8, 32), stride=(32, 1)), (8, 32))
    assert (facts.box, facts.modes) == ((256,), ((1, 0),))
    assert (sizes, strides) == ([64 * 32], [])
    assert tensor == "tensor<(0) o (64,32):(32@0,1@0)>"
    # more than 256 elements, a row of a swizzle, or less than the whole mode
    facts, *_ = made(Float16, rows, cute.make_layout((16, 32), stride=(32, 1)), (16, 32))
    assert facts.box == (32, 16)
    facts, *_ = made(Float16, rows, smem(Kind.K_SW64, Float16, (8, 32)), (8, 32))
    assert facts.box == (32, 8)
    padded = cute.make_layout((64, 24), stride=(32, 1))
    facts, sizes, strides, _ = made(Float16, padded, cute.make_layout((8, 32), stride=(32, 1)), (8, 32))
    assert (facts.box, sizes, strides) == ((32, 8), [24, 64], [64])


def test_nested_modes_and_broadcast():
    """Keys of attention: (sequence, d, ((heads that share, heads), batch)), the first of them of stride 0."""
    layout = cute.make_layout((96, 64, ((4, 2), 3)), stride=(128, 1, ((0, 64), 96 * 128)))
    facts, sizes, strides, tensor = made(Float16, layout, smem(Kind.K_SW128, Float16, (64, 64)), (64, 64))
    assert (facts.box, facts.modes) == ((64, 64, 1, 1), ((1,), (0,), (3,), (4,)))
    assert sizes == [64, 96, 2, 3]
    assert strides == [256, 128, 96 * 256]
    assert tensor == "tensor<(0,0,0,0) o (96,64,((4,2),3)):(1@1,1@0,((0,1@2),1@3))>"


def test_a_tile_that_cuts_a_nested_mode():
    layout = cute.make_layout(((8, 16), 64), stride=((64, 1024), 1))
    facts, sizes, strides, tensor = made(Float16, layout, smem(Kind.K_SW128, Float16, (32, 64)), (32, 64))
    assert (facts.box, facts.modes) == ((64, 8, 4), ((2,), (0,), (1,)))
    assert (sizes, strides) == ([64, 8, 16], [128, 2048])
    assert tensor == "tensor<(0,0,0) o ((8,16),64):((1@1,1@2),1@0)>"


def test_modes_of_one_element_are_left_out():
    layout = cute.make_layout((512, 256, 1, 3), stride=(256, 1, 0, 512 * 256))
    facts, sizes, _, tensor = made(Float16, layout, smem(Kind.K_SW128, Float16, (128, 64)), (128, 64))
    assert (facts.box, facts.modes, sizes) == ((64, 128, 1), ((1,), (0,), (3,)), [256, 512, 3])
    assert tensor == "tensor<(0,0,0) o (512,256,1,3):(1@1,1@0,0,1@2)>"


def test_a_tile_of_a_mode_of_one_element():
    layout = cute.make_layout((1, 256), stride=(1, 1))
    facts, sizes, strides, tensor = made(Float16, layout, smem(Kind.K_SW128, Float16, (8, 64)), (8, 64))
    assert (facts.box, sizes, strides) == ((64, 8), [256, 1], [16])
    assert tensor == "tensor<(0,0) o (1,256):(0,1@0)>"


def test_atoms_with_other_boxes_are_not_one_value():
    @cute.kernel
    def kernel(first: cpasync.TmaInfo, second: cpasync.TmaInfo):
        atom = first.atom
        if cute.arch.block_idx()[0] > 0:
            atom = second.atom
        cpasync.prefetch_descriptor(atom)

    @cute.jit
    def host(p: cute.Pointer, swizzled: kiln.Constexpr[bool]):
        x = cute.make_tensor(p, k_major(512, 256))
        plain = cute.make_layout((8, 32), stride=(32, 1))
        other = cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, plain) if swizzled else plain
        kernel(*(cpasync.make_tiled_tma_atom(LOAD, x, s, (8, 32)) for s in (plain, other))).launch(grid=2, block=32)

    traced(host, pointer(Float16), False)
    with pytest.raises(DSLUserCodeError, match="atom"):
        traced(host, pointer(Float16), True)


def test_a_transposed_view():
    layout = cute.make_layout((256, 512), stride=(1, 256))
    facts, sizes, strides, tensor = made(Float16, layout, cute.make_layout((64, 32)), (64, 32))
    assert (facts.box, facts.modes, sizes, strides) == ((64, 32), ((0,), (1,)), [256, 512], [512])
    assert tensor == "tensor<(0,0) o (256,512):(1@0,1@1)>"


def test_more_than_five_modes_are_folded():
    shape, stride = (64, 32, 3, 5, 2, 7), (32, 1, 2048, 8 * 2048, 6 * 2048, 64 * 2048)
    facts, sizes, strides, tensor = made(
        Float16, cute.make_layout(shape, stride=stride), smem(Kind.K_SW64, Float16, (8, 32)), (8, 32)
    )
    assert (facts.box, facts.modes) == ((32, 8, 1, 1, 1), ((1,), (0,), (2,), (3,), (4, 5)))
    common = 2 * 2048  # of 6 and 64 times 2048
    assert sizes == [32, 64, 3, 5, 1 * 3 + 6 * 32 + 1]
    assert strides == [64, 4096, 8 * 4096, common * 2]
    assert tensor == "tensor<(0,0,0,0,0) o (64,32,3,5,2,7):(1@1,1@0,1@2,1@3,3@4,32@4)>"


@pytest.mark.parametrize(
    ("dtype", "internal", "element", "box", "sizes", "ratio"),
    [
        (Float32, TFloat32, "tf32", (32, 64), [256, 512], (1, 1)),
        (Float16, Uint8, "u8", (64, 64), [512, 512], (2, 1)),
        (Uint8, Int16, "u16", (16, 64), [128, 512], (1, 2)),
    ],
)
def test_the_map_may_have_another_element_type(dtype, internal, element, box, sizes, ratio):
    layout = cute.make_layout((512, 256), stride=(256, 1))
    shared = cute.make_layout((64, 32), stride=(32, 1))
    facts, found, strides, tensor = made(dtype, layout, shared, (64, 32), internal_type=internal)
    assert (facts.element, facts.box, found, facts.ratio) == (element, box, sizes, ratio)
    assert strides == [256 * dtype.width // 8]
    assert facts.values == 64 * 32
    assert tensor == "tensor<(0,0) o (512,256):(1@1,1@0)>"


def test_stages_after_the_tile_do_not_count():
    staged = utils.sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (128, 128, 64), Float16, 4)
    assert made(Float16, k_major(512, 256), staged, (128, 64))[0].box == (64, 128, 1)


def test_dynamic_extents_and_strides_are_values():
    @cute.jit
    def host(x: cute.Tensor):
        cpasync.make_tiled_tma_atom(LOAD, x, smem(Kind.K_SW128, Float16, (64, 64)), (64, 64))

    x = from_dlpack(np.zeros((2, 256, 512), np.float16).transpose(1, 2, 0), assumed_align=16)
    sizes, strides = numbers(traced(host, x.mark_layout_dynamic(leading_dim=1)))
    assert len(sizes) == 3
    assert len(strides) == 2
    assert all(isinstance(v, str) for v in sizes + strides)


@pytest.mark.parametrize(("operand", "blocks"), [("A", (1, 1, 2, 1)), ("B", (1, 4, 2, 1)), ("A", None)])
def test_operands_of_a_tiled_mma(operand, blocks):
    """Tiles lie in shared memory as (MMA, MMA_M or MMA_N, MMA_K); those that differ only in N share A, in M share B."""
    k = warpgroup.OperandMajorMode.K
    mma = utils.sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (64, 64))
    outer = cute.make_layout(((64, 16), 2, 4, 3), stride=((64, 1), 4096, 16, 8192))
    shared = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, outer)
    make = {"A": cpasync.make_tiled_tma_atom_A, "B": cpasync.make_tiled_tma_atom_B}[operand]
    found = {}

    @cute.jit
    def host(p: cute.Pointer):
        x = cute.make_tensor(p, k_major(512, 256))
        op = LOAD if blocks is None else MULTICAST
        found["info"] = make(op, x, shared, (128, 128, 64), mma, blocks)

    traced(host, pointer(Float16))
    facts = found["info"].atom.trait.facts
    share = 1 if blocks is None else blocks[2 if operand == "A" else 1]
    assert (facts.box, facts.modes, facts.swizzle) == ((64, 128 // share, 1), ((1,), (0,), (2,)), "128b")
    assert facts.values == 128 * 64
    assert found["info"].smem_layout is shared


@pytest.mark.parametrize(
    ("layout", "shared", "tile", "box", "values"),
    [
        (cute.make_layout((32768,)), cute.make_layout(16384), (16384,), (256,), 256),
        (cute.make_layout((32768,)), cute.make_layout(1536), (1536,), (256,), 256),
        (cute.make_layout((32768,)), cute.make_layout(272), (272,), (136,), 136),
        (cute.make_layout((512, 1024), stride=(1024, 1)), cute.make_layout((8, 512), stride=(512, 1)), (8, 512), (256, 1), 256),
        (k_major(1024, 256), smem(Kind.K_SW128, Float16, (512, 64)), (512, 64), (64, 256, 1), 64 * 256),
    ],
    ids=["one mode", "not a power of two", "parts of 16 bytes", "columns", "rows"],
)  # fmt: skip
def test_tiles_longer_than_a_box_take_several(layout, shared, tile, box, values):
    facts, _, _, _ = made(Float16, layout, shared, tile)
    assert (facts.box, facts.values) == (box, values)


@pytest.mark.parametrize("tile", [256, 1536, 16384])
def test_a_long_tile_is_copied_whole(tile):
    @cute.kernel
    def kernel(load: cute.CopyAtom, source: cute.Tensor, target: cute.Tensor):
        allocator = utils.SmemAllocator()
        barrier = allocator.allocate_array(kiln.Int64, 1)
        shared = allocator.allocate_tensor(Float32, cute.make_layout(tile), 128)
        tidx = cute.arch.thread_idx()[0]
        if tidx == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.sync_threads()
        part = cute.local_tile(source, (tile,), (1,))
        ours, theirs = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(shared, 0, 1), cute.group_modes(part, 0, 1)
        )
        if tidx == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, tile * 4)
        cute.copy(load, theirs, ours, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for number in range(tidx, tile, 32):
            target[number] = shared[number]

    @cute.jit
    def host(source: cute.Tensor, target: cute.Tensor):
        load, coordinates = cpasync.make_tiled_tma_atom(LOAD, source, cute.make_layout(tile), (tile,))
        kernel(load, coordinates, target).launch(grid=[1, 1, 1], block=[32, 1, 1])

    source = np.arange(3 * tile, dtype=np.float32)
    target = np.zeros(tile, np.float32)
    with kiln.target("cpu"):
        host(from_dlpack(source, assumed_align=16), from_dlpack(target, assumed_align=16))
    assert np.array_equal(target, source[tile : 2 * tile])


def operand_atom(mma):
    @cute.jit
    def host(p: cute.Pointer):
        x = cute.make_tensor(p, k_major(512, 256))
        cpasync.make_tiled_tma_atom_A(LOAD, x, cute.make_layout(1), (128, 128, 64), mma)

    traced(host, pointer(Float16))


REFUSED = {
    "box": (
        lambda: made(Float16, cute.make_layout((512, 1028), stride=(1028, 1)), cute.make_layout((8, 514), stride=(514, 1)), (8, 514)),
        r"a box has at most 256 elements in each mode, and mode 0 of \(514, 8\) has 514",
    ),
    "box of a multicast": (
        lambda: made(Float16, cute.make_layout((512, 1024), stride=(1024, 1)), cute.make_layout((8, 512), stride=(512, 1)), (8, 512), 2, MULTICAST),
        r"a box has at most 256 elements in each mode, and mode 0 of \(512, 4\) has 512",
    ),
    "rows": (
        lambda: made(Float16, cute.make_layout((512, 1024), stride=(1024, 1)), cute.make_layout((8, 4), stride=(4, 1)), (8, 4)),
        r"rows of a box are multiples of 16 bytes, and \(4, 8\) has rows of 8 bytes",
    ),
    "swizzle of elements": (
        lambda: made(Float16, k_major(512, 256), cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, cute.make_layout((8, 64), stride=(64, 1))), (8, 64)),
        r"S<1,4,3>, S<2,4,3>, S<3,4,3> and S<2,5,2> of bytes, got S<3,3,3>",
    ),
    "row of the swizzle": (
        lambda: made(Float16, k_major(512, 256), cute.make_composed_layout(cute.make_swizzle(1, 4, 3), 0, cute.make_layout((8, 64), stride=(64, 1))), (8, 64)),
        r"at most 32 bytes with the swizzle 32b, got 128",
    ),
    "short rows": (
        lambda: made(Float16, k_major(512, 256), cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, cute.make_layout((8, 32), stride=(32, 1))), (8, 32)),
        r"with the swizzle 128b rows of a box lie 128 bytes apart in shared memory, and those of the box \(32, 8, 1\) are 64 bytes long",
    ),
    "strides": (
        lambda: made(Float16, cute.make_layout((512, 100), stride=(100, 1)), cute.make_layout((8, 64), stride=(64, 1)), (8, 64)),
        r"strides are multiples of 16 bytes below 2\*\*40, and mode 1 has 200 bytes",
    ),
    "major": (
        lambda: made(Float16, k_major(512, 256), cute.make_layout((64, 64)), (64, 64)),
        r"majorness: .* is mode 0 of the tensor, whose stride is not 1",
    ),
    "tile": (
        lambda: made(Float16, k_major(512, 256), cute.make_layout((64, 32), stride=(32, 1)), (64, 64)),
        r"the tile is \(64,64\) and its layout in shared memory .* is \(64,32\)",
    ),
    "blocks": (
        lambda: made(Float16, k_major(512, 256), cute.make_layout((8, 64), stride=(64, 1)), (8, 64), 3, MULTICAST),
        r"not cut into 3 equal parts",
    ),
    "operation": (
        lambda: made(Float16, k_major(512, 256), cute.make_layout((8, 64), stride=(64, 1)), (8, 64), op=cpasync.CopyG2SOp()),
        r"no TMA copy",
    ),
    "no run": (
        lambda: made(Float16, k_major(512, 256), cute.make_layout((8, 64), stride=(128, 2)), (8, 64)),
        r"not along a mode of the tensor",
    ),
    "no tiled MMA": (
        lambda: operand_atom(None),
        r"make_tiled_tma_atom_A takes a tiled MMA, got NoneType",
    ),
    "modes": (
        lambda: made(Float16, cute.make_layout(512), cute.make_layout((8, 64)), (8, 64)),
        r"more modes than",
    ),
    "reduction": (
        lambda: made(Float8E4M3FN, k_major(512, 256), cute.make_layout((8, 64), stride=(64, 1)), (8, 64), op=cpasync.CopyReduceBulkTensorTileS2GOp()),
        r"a reducing copy \(add\) of Float8E4M3FN elements",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_map_describes_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(DSLUserCodeError, match=message):
        make()


def test_the_host_encodes_maps_and_a_kernel_writes_them_to_memory():
    """An atom that a kernel makes has no map to copy with, until `copy_tensormap` has made one (test_tma_sm100)."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        atom, _ = cpasync.make_tiled_tma_atom(LOAD, x, cute.make_layout((8, 64), stride=(64, 1)), (8, 64))
        cpasync.prefetch_descriptor(atom)

    @cute.jit
    def host(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    with pytest.raises(DSLUserCodeError, match="an atom that was made in a kernel: the host encodes tensor maps"):
        traced(host, from_dlpack(np.zeros((64, 64), np.float16), assumed_align=16))


def test_a_group_of_ctas_is_a_member():
    groups = cute.nvgpu.common.CtaGroup
    assert cpasync.CopyBulkTensorTileG2SOp(groups.TWO).cta_group is groups.TWO
    with pytest.raises(DSLUserCodeError, match="cta_group is 2"):
        cpasync.CopyBulkTensorTileG2SOp(2)


def test_operations_need_a_tensor():
    with pytest.raises(DSLUserCodeError, match="its atoms belong to a tensor"):
        cute.make_copy_atom(LOAD, Float16)
