"""`ldmatrix` and `stmatrix` of bytes: atoms and inline PTX do what the PTX manual's figures say, written out here."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run, runs

import kiln
from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch
from kiln.cute.nvgpu import warp
from kiln.mlir import ir

FEW = [(1, 0), (2, 1)]


def m8n16(lane: int, i: int) -> tuple[int, int]:
    """The row of memory, and the place in it, of the i-th byte of a lane."""
    return 8 * (i // 4) + lane // 4, 4 * (lane % 4) + i % 4


def m16n16(lane: int, i: int) -> tuple[int, int]:
    matrix, rest = divmod(i, 8)
    return 16 * matrix + 4 * (lane % 4) + rest % 4, lane // 4 + 8 * (rest // 4)


def m16n8(lane: int, i: int) -> tuple[int, int]:
    matrix, rest = divmod(i, 4)
    return 8 * matrix + 2 * (lane % 4) + rest % 2, lane // 4 + 8 * (rest // 2)


LOADS = [
    (warp.LdMatrix8x16x8bOp, False, m8n16, 4, 4, "m8n16", ""),
    (warp.LdMatrix16x16x8bOp, True, m16n16, 8, 2, "m16n16", ".trans"),
]
CASES = [
    (op(transpose, count, unpack), table, each * count, f"ldmatrix.sync.aligned.{shape}.x{count}{trans}.shared", unpack)
    for op, transpose, table, each, most, shape, trans in LOADS
    for count in (1, 2, 4)[: 3 if most == 4 else 2]
    for unpack in (None, 4, 6)
]


def unpacked(rows: np.ndarray, bits: int | None) -> np.ndarray:
    """Rows of 16 bytes as rows of 16 elements."""
    if bits is None:
        return rows
    numbers = [int.from_bytes(row.tobytes(), "little") for row in rows]
    return np.array([[number >> (bits * i) & ((1 << bits) - 1) for i in range(16)] for number in numbers], np.uint8)


@pytest.mark.parametrize(("op", "table", "values", "_text", "bits"), CASES, ids=[str(case[0]) for case in CASES])
def test_the_layout_of_loads(op, table, values, _text, bits):
    atom = cute.make_copy_atom(op, cute.Uint8)
    assert cute.size(atom.layout_dst_tv[1]) == values
    for lane in range(32):
        for i in range(values):
            assert atom.layout_dst_tv((lane, i)) == atom.layout_src_tv(table(lane, i))


SOME = [case for case in CASES if case[-1] == 4 or case[0].num_matrices == 2]


@pytest.mark.quick(5)
@pytest.mark.parametrize(("op", "table", "values", "_text", "bits"), SOME, ids=[str(case[0]) for case in SOME])
def test_loads(op, table, values, _text, bits):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        memory = arch.alloc_smem(cute.Uint8, 512, 128)
        tile, t = cute.make_tensor(memory, cute.make_layout(512)), arch.thread_idx()[0]
        for i in range(16):
            tile[i * 32 + t] = x[i * 32 + t]
        arch.sync_warp()
        atom = cute.make_copy_atom(op, cute.Uint8)
        covered = 32 * values
        copy = cute.make_tiled_copy(atom, atom.layout_dst_tv, (covered,)).get_slice(t)
        held = cute.make_rmem_tensor(((values,), 1), cute.Uint8)
        cute.copy(copy, copy.partition_S(cute.make_tensor(memory, cute.make_layout(covered))), held)
        for i in range(values):
            out[t * values + i] = held[i]

    x = np.random.default_rng(values).integers(0, 256, 512).astype(np.uint8)
    rows = unpacked(x.reshape(32, 16), bits)
    want = [[rows[table(lane, i)] for i in range(values)] for lane in range(32)]
    for _, out in runs(kernel, x, np.zeros(32 * values, np.uint8), schedules=FEW):
        np.testing.assert_array_equal(out.reshape(32, values), want)


def words(value, count):
    return [
        cute.Int32._make(
            tracing.emit_value(
                "llvm.extractvalue", cute.Int32.mlir_type, (value,), {"position": ir.DenseI64ArrayAttr.get([n])}
            )
        )
        for n in range(count)
    ]


IN_PTX = [  # m8n16 of bytes is m8n8 of b16
    case[1:] for case in CASES if case[0].num_matrices == 2 and (case[-1] or "m16n16" in case[3])
]


@pytest.mark.parametrize(("table", "values", "text", "bits"), IN_PTX, ids=[f"{case[2]} {case[3]}" for case in IN_PTX])
def test_loads_in_ptx(table, values, text, bits):
    count = values // 4
    kind = {None: "b8", 4: "b8x16.b4x16_p64", 6: "b8x16.b6x16_p32"}[bits]
    names = ", ".join(f"${n}" for n in range(count))
    code = f"{text}.{kind} {{{names}}}, [${count}];"
    type_text = f"!llvm.struct<({', '.join(['i32'] * count)})>"

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        memory = arch.alloc_smem(cute.Uint8, 512, 128)
        tile, t = cute.make_tensor(memory, cute.make_layout(512)), arch.thread_idx()[0]
        for i in range(16):
            tile[i * 32 + t] = x[i * 32 + t]
        arch.sync_warp()
        place = (memory + t * 16).toint()
        made = asm(ir.Type.parse(type_text), [place], code, ",".join(["=r"] * count + ["r"]))
        for n, value in enumerate(words(made, count)):
            out[t * count + n] = value

    x = np.random.default_rng(values).integers(0, 256, 512).astype(np.uint8)
    rows = unpacked(x.reshape(32, 16), bits)
    want = [[rows[table(lane, i)] for i in range(values)] for lane in range(32)]
    out = np.zeros(32 * count, np.int32)
    run(kernel, x, out)
    np.testing.assert_array_equal(out.view(np.uint8).reshape(32, values), want)


@pytest.mark.parametrize("in_ptx", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stores(count, in_ptx):
    values = 4 * count
    atom = cute.make_copy_atom(warp.StMatrix16x8x8bOp(True, count), cute.Uint8)
    for lane in range(32):
        for i in range(values):
            assert atom.layout_src_tv((lane, i)) == atom.layout_dst_tv(m16n8(lane, i))
    names = ", ".join(f"${n + 1}" for n in range(count))
    code = f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [$0], {{{names}}};"

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        memory = arch.alloc_smem(cute.Uint8, 512, 128)
        tile, t = cute.make_tensor(memory, cute.make_layout(512)), arch.thread_idx()[0]
        for i in range(16):
            tile[i * 32 + t] = cute.Uint8(0)
        arch.sync_warp()
        held = cute.make_rmem_tensor(((values,), 1), cute.Uint8)
        for i in range(values):
            held[i] = x[t * values + i]
        if kiln.const_expr(in_ptx):
            registers = cute.recast_tensor(held, cute.Int32)
            asm(
                None,
                [(memory + t * 16).toint(), *(registers[n] for n in range(count))],
                code,
                ",".join(["r"] * (count + 1)),
            )
        else:
            atom = cute.make_copy_atom(warp.StMatrix16x8x8bOp(True, count), cute.Uint8)
            covered = 128 * count
            copy = cute.make_tiled_copy(atom, atom.layout_src_tv, (covered,)).get_slice(t)
            cute.copy(copy, held, copy.partition_D(cute.make_tensor(memory, cute.make_layout(covered))))
        arch.sync_warp()
        for i in range(16):
            out[i * 32 + t] = tile[i * 32 + t]

    x = np.random.default_rng(count).integers(1, 256, 32 * values).astype(np.uint8)
    want = np.zeros((32, 16), np.uint8)
    for lane in range(32):
        for i in range(values):
            want[m16n8(lane, i)] = x[lane * values + i]
    assert (want[: 8 * count] > 0).all()
    for _, out in runs(kernel, x, np.zeros(512, np.uint8), schedules=FEW):
        np.testing.assert_array_equal(out.reshape(32, 16), want)


@pytest.mark.parametrize(
    "instruction",
    [
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {$0, $1}, [$2];",
        "ldmatrix.sync.aligned.m8n16.x2.trans.shared.b8x16.b4x16_p64 {$0, $1}, [$2];",
        "ldmatrix.sync.aligned.m8n8.x2.shared.b8x16.b4x16_p64 {$0, $1}, [$2];",
    ],
)
def test_forms_that_do_not_exist_are_refused(instruction):
    @cute.kernel
    def kernel(out: cute.Tensor):
        memory = arch.alloc_smem(cute.Uint8, 512, 128)
        made = asm(ir.Type.parse("!llvm.struct<(i32, i32)>"), [memory.toint()], instruction, "=r,=r,r")
        out[arch.thread_idx()[0]] = words(made, 2)[0]

    with pytest.raises(DSLNotImplemented, match="ldmatrix"):
        run(kernel, np.zeros(32, np.int32))
