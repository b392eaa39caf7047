"""Operands of warpgroups in shared memory: descriptors lead the tensor cores to the very elements of the tensor."""

from __future__ import annotations

from typing import Any

import pytest
from ir_testing import check, traced

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import warpgroup
from kiln.cute.nvgpu.warpgroup import OperandMajorMode, OperandSource, SmemLayoutAtomKind
from kiln.dialects import nvgpu
from kiln.dialects.nvgpu import definitions
from kiln.utils import sm90

F16, F32, E4M3, I8 = kiln.Float16, kiln.Float32, kiln.Float8E4M3FN, kiln.Int8
K, MN = OperandMajorMode.K, OperandMajorMode.MN


def in_kernel(body: Any, threads: int = 128) -> str:
    """The module of a kernel that does what a function says."""

    @cute.kernel
    def kernel(t: kiln.Int32):
        body(t)

    @cute.jit
    def launch(t: kiln.Int32):
        kernel(t).launch(grid=1, block=threads)

    return traced(launch, 1)


def mma_of(
    dtype: Any, n: int = 128, a: Any = K, b: Any = K, atoms: Any = (1, 1, 1), source: Any = OperandSource.SMEM
) -> Any:
    sums = kiln.Int32 if dtype is I8 else F32
    return sm90.make_trivial_tiled_mma(dtype, dtype, a, b, sums, atoms, (64, n), source)


def shared(layout: Any, dtype: Any, alignment: int = 1024) -> Any:
    return utils.SmemAllocator().allocate_tensor(dtype, layout.outer, alignment, layout.inner)


WGMMA_KINDS = [kind for kind in SmemLayoutAtomKind if kind is not SmemLayoutAtomKind.MN_SW128_32B]  # tcgen05's alone
KINDS = [(kind, F16, order) for kind in WGMMA_KINDS for order in ((0, 1, 2), (1, 0, 2))]
KINDS += [(kind, dtype, (0, 1, 2)) for kind in WGMMA_KINDS if kind.name.startswith("K") for dtype in (E4M3, F32)]


@pytest.mark.parametrize(("kind", "dtype", "order"), KINDS)
def test_every_layout_of_shared_memory(kind: Any, dtype: Any, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int, str]] = []
    build = nvgpu.wgmma.matrix_descriptor
    monkeypatch.setattr(nvgpu.wgmma, "matrix_descriptor", lambda p, *given: made.append(given) or build(p, *given))
    major = K if kind.name.startswith("K") else MN
    bits = 8 * (dtype.width // 8)

    def body(_t: Any) -> None:
        mma = mma_of(dtype, a=major, b=major, atoms=(2, 1, 1))
        k = mma.shape_mnk[2]
        layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, dtype), (256, 16 * k, 2), order)
        tensor, thr = shared(layout, dtype), mma.get_slice(0)
        for part, make in (
            (thr.partition_A(tensor), mma.make_fragment_A),
            (thr.partition_B(tensor), thr.make_fragment_B),
        ):
            found = make(part)
            assert found.shape[0] == 1 and cute.size(found, mode=[2]) == 16
            fields = made.pop()
            for rest in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 7, 0), (1, 15, 1)):
                descriptor = definitions.matrix_descriptor(found.layout((0, *rest)) * 16, *fields)
                name = "k" if major is K else "mn"
                for row, column in ((0, 0), (7, 1), (8, 0), (63, k - 1), (40, 5), (17, k // 2)):
                    place = part.layout(((row, column), *rest)) * bits // 8
                    assert layout.inner(place) == definitions.operand_address(descriptor, name, bits, row, column)

    in_kernel(body)


PACKED = {
    # major, swizzle: leading and stride of a packed tile 64 x 64 of f16
    SmemLayoutAtomKind.K_SW128: (16, 1024), SmemLayoutAtomKind.K_SW64: (16, 512), SmemLayoutAtomKind.K_SW32: (16, 256),
    SmemLayoutAtomKind.K_INTER: (1024, 128), SmemLayoutAtomKind.MN_SW128: (0, 1024), SmemLayoutAtomKind.MN_SW64: (4096, 512),
    SmemLayoutAtomKind.MN_SW32: (2048, 256), SmemLayoutAtomKind.MN_INTER: (128, 1024),
}  # fmt: skip


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_offsets_of_packed_tiles(kind: SmemLayoutAtomKind) -> None:
    def body(_t: Any) -> None:
        mode, _, _ = kind.name.partition("_")
        major = OperandMajorMode[mode]
        layout = cute.tile_to_shape(
            warpgroup.make_smem_layout_atom(kind, F16), (64, 64), (0, 1) if major is K else (1, 0)
        )
        mma = mma_of(F16, n=64, a=major)
        mma.make_fragment_A(mma.get_slice(0).partition_A(shared(layout, F16)))

    leading, stride = PACKED[kind]
    swizzle = {"INTER": "none", "SW32": "32b", "SW64": "64b", "SW128": "128b"}[kind.name.partition("_")[2]]
    check(
        in_kernel(body),
        f'matrix_descriptor"(%p) {{leading = {leading} : i32, stride = {stride} : i32, swizzle = "{swizzle}"',
    )


def test_the_address_is_made_once_and_moved_by_what_is_known() -> None:
    def body(t: Any) -> None:
        layout = sm90.make_smem_layout_a(utils.LayoutEnum.ROW_MAJOR, (128, 128, 64), F16, 4)
        mma = mma_of(F16, atoms=(2, 1, 1))
        part = mma.get_slice(t).partition_A(shared(layout, F16))
        found = mma.make_fragment_A(part)
        assert str(found) == "tensor<smem_desc<f16, k, 128b> o (1,1,4,(1,4)):(0,0,2,(0,1024))>"
        assert found.element_type is F16 and found.memspace is cute.AddressSpace.smem and not found.in_memory
        stage = found[None, None, None, t]
        for k in range(4):
            cute.printf("%ld", stage[0, 0, k])

    text = in_kernel(body, 256)
    assert text.count("matrix_descriptor") == 1
    check(
        text,
        """
        %place = "cute.ptr_add"(%start, %row)
        %whole = "cute_nvgpu.matrix_descriptor"(%place)
        %low = arith.trunci %whole
        %high = arith.andi %whole
        %stage = arith.addi %low, %t
        arith.extui %stage
        %k1 = arith.addi %stage, %two
        %wide = arith.extui %k1
        arith.ori %high, %wide
        not: matrix_descriptor
        """,
    )


def test_a_layout_with_the_swizzle_in_it() -> None:
    def body(_t: Any) -> None:
        mma, inside = mma_of(F16, n=64), cute.make_composed_layout
        outer = cute.make_layout((64, 64), stride=(64, 1))
        pointer = utils.SmemAllocator().allocate_tensor(F16, outer, 1024).iterator
        tensor = cute.make_tensor(pointer, inside(cute.make_swizzle(3, 3, 3), 0, outer))
        found = mma.make_fragment_A(mma.get_slice(0).partition_A(tensor))
        assert str(found) == "tensor<smem_desc<f16, k, 128b> o (1,1,4):(0,0,2)>"

    in_kernel(body)


def test_they_cross_control_flow() -> None:
    def body(t: Any) -> None:
        layout = sm90.make_smem_layout_a(utils.LayoutEnum.ROW_MAJOR, (64, 64, 64), F16, 2)
        mma = mma_of(F16, n=64)
        found = mma.make_fragment_A(mma.get_slice(0).partition_A(shared(layout, F16)))
        walk(found, t)

    @cute.jit
    def walk(found: cute.Tensor, t: kiln.Int32):
        now = found[None, None, None, 0]
        for _ in range(t):
            now = cute.make_tensor(now.iterator + 2, now.layout)
        cute.printf("%ld", now[0])

    assert in_kernel(body).count("scf.for") == 1


# --- what is refused -------------------------------------------------------------------------------------------------


def operand(
    layout: Any, dtype: Any = F16, major: Any = K, swizzle: Any = (3, 4, 3), alignment: int = 1024, mma: Any = None
) -> Any:
    def body(_t: Any) -> None:
        tiled = mma or mma_of(F16, n=64, a=major)
        inner = None if swizzle is None else cute.make_swizzle(*swizzle)
        tensor = utils.SmemAllocator().allocate_tensor(dtype, layout, alignment, inner)
        tiled.make_fragment_A(tiled.get_slice(0).partition_A(tensor))

    return lambda: in_kernel(body)


ROWS = cute.make_layout((64, 64), stride=(64, 1))
COLUMNS = cute.make_layout((64, 64), stride=(1, 64))
WRONG = {
    r"K-major, swizzle 128b, and the tensor cores cannot read the layout .*along MN lie blocks of 8 elements, 64 apart": operand(
        COLUMNS
    ),
    r"MN-major, swizzle 128b, .*along MN lie blocks of 64 elements, 1 apart": operand(ROWS, major=MN),
    "along MN lie blocks of 8 elements, 32 apart": operand(ROWS, swizzle=(2, 4, 3)),
    "along MN lie blocks of 8 elements, 8 apart": operand(ROWS, swizzle=None),
    r"along K the 32 bytes of a call lie in a row": operand(
        cute.make_layout((64, (8, 2, 4)), stride=(64, (1, 4096, 16))), swizzle=(3, 4, 3)
    ),
    r"swizzled by S<3,3,3>": operand(ROWS, swizzle=(3, 3, 3)),
    "takes Float16 elements of A, got BFloat16": operand(ROWS, dtype=kiln.BFloat16),
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_the_tensor_cores_cannot_read(rule: str) -> None:
    with pytest.raises(TypeError, match=rule):
        WRONG[rule]()


def test_operands_begin_in_the_first_row_of_a_pattern() -> None:
    def begin(rows: int, columns: int) -> None:
        def body(_t: Any) -> None:
            mma = mma_of(F16, n=64)
            tensor = utils.SmemAllocator().allocate_tensor(
                F16, cute.make_layout((80, 64), stride=(64, 1)), 1024, cute.make_swizzle(3, 4, 3)
            )
            moved = cute.domain_offset((rows, columns), tensor)
            tile = cute.make_tensor(moved.iterator, cute.make_layout((64, 16), stride=(64, 1)))
            mma.make_fragment_A(mma.get_slice(0).partition_A(tile))

        in_kernel(body)

    begin(8, 0)
    begin(16, 48)
    with pytest.raises(TypeError, match="begins 512 bytes after a multiple of 1024"):
        begin(12, 0)


def test_operands_begin_with_whole_pieces() -> None:
    def body(_t: Any) -> None:
        mma = mma_of(F16, n=64)
        pointer = utils.SmemAllocator().allocate_tensor(F16, 2048, 1024).iterator
        tile = cute.make_tensor(pointer + 4, cute.make_layout((64, (8, 2)), stride=(8, (1, 512))))
        mma.make_fragment_A(mma.get_slice(0).partition_A(tile))

    with pytest.raises(TypeError, match="by 16 bytes at once, and its address is only known to be a multiple of 8"):
        in_kernel(body)


def test_memory_that_is_not_shared() -> None:
    def body(_t: Any) -> None:
        mma = mma_of(F16, n=64)
        mma.make_fragment_B(cute.make_rmem_tensor(((64, 16), 1, 1), F16))

    with pytest.raises(TypeError, match="operand B of a WGMMA lies in smem, got a tensor in rmem"):
        in_kernel(body)
