"""Operations of the hardware on random inputs, compared with their plain definitions; for every target.

A case takes `run(kernel, *arrays, grid=, block=)`, which launches a kernel on arrays and leaves in them what it wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from mma_cases import NUMPY, elements_of, shared, vector_of

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.dialects.nvgpu import definitions
from kiln.hardware import mma_shapes
from kiln.mlir import ir

ROWS = 12
"""How many warps try each operation."""
SHUFFLES = ("idx", "up", "down", "bfly")
VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS = ("add", "min", "max", "umin", "umax", "and", "or", "xor")


EVERYWHERE: dict[str, Callable[..., None]] = {}
"""Cases that every GPU can run, by name; filled below."""


def everywhere(case):
    EVERYWHERE[case.__name__] = case
    return case


def word(value) -> ir.Value:
    return cute.Int32(value).ir_value()


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of which some are small, so that they agree or have few bits."""
    wide = rng.integers(0, 1 << 32, shape, dtype=np.uint64)
    return np.where(rng.random(shape) < 0.5, wide, wide % 3).astype(np.uint32).view(np.int32)


@everywhere
def shuffles(run):
    @cute.kernel
    def kernel(x: cute.Tensor, offsets: cute.Tensor, clamps: cute.Tensor, out: cute.Tensor):
        t, row = arch.thread_idx()[0], arch.block_idx()[0]
        for n, kind in enumerate(SHUFFLES):
            value, offset, clamp = (v[row, t].ir_value() for v in (x, offsets, clamps))
            made = nvgpu.warp.shuffle(kind, value, offset, word(-1), clamp)
            out[row, n, t] = cute.Int32._make(made)

    rng = np.random.default_rng(1)
    x, offsets = words(rng, ROWS, 32), rng.integers(-40, 40, (ROWS, 32)).astype(np.int32)
    segments = rng.choice([0, 16, 24, 28, 30, 31], (ROWS, 1))
    clamps = (segments << 8 | rng.integers(0, 32, (ROWS, 32))).astype(np.int32)
    out = np.zeros((ROWS, 4, 32), np.int32)
    run(kernel, x, offsets, clamps, out, grid=ROWS)
    for row in range(ROWS):
        for n, kind in enumerate(SHUFFLES):
            want = definitions.shuffle(kind, x[row].tolist(), offsets[row].tolist(), clamps[row].tolist())
            np.testing.assert_array_equal(out[row, n], want, kind)


@everywhere
def votes_matches_and_reductions(run):
    @cute.kernel
    def kernel(x: cute.Tensor, masks: cute.Tensor, out: cute.Tensor):
        t, row = arch.thread_idx()[0], arch.block_idx()[0]
        value, mask = x[row, t], masks[row]
        if (mask >> t) & 1 != 0:
            for n, kind in enumerate(VOTES):
                made = nvgpu.warp.vote(kind, (value % 2 == 0).ir_value(), mask.ir_value())
                out[row, n, t] = cute.Int32(cute.Boolean._make(made)) if kind != "ballot" else cute.Int32._make(made)
            for n, kind in enumerate(REDUCTIONS):
                out[row, 4 + n, t] = cute.Int32._make(nvgpu.warp.redux(kind, value.ir_value(), mask.ir_value()))
            for n, kind in enumerate(("any", "all")):
                out[row, 12 + n, t] = cute.Int32._make(nvgpu.warp.match(kind, value.ir_value(), mask.ir_value()))

    rng = np.random.default_rng(2)
    x = words(rng, ROWS, 32)
    x[0] = 7  # all agree
    masks = rng.integers(1, 1 << 32, ROWS, dtype=np.uint64).astype(np.uint32)
    masks[:3] = 0xFFFFFFFF, 1 << 31, 0xFFFF
    out = np.zeros((ROWS, 14, 32), np.int32)
    run(kernel, x, masks.view(np.int32), out, grid=ROWS)
    for row in range(ROWS):
        mask, values = int(masks[row]), x[row].view(np.uint32).tolist()
        inside = [lane for lane in range(32) if mask >> lane & 1]
        got = out[row].view(np.uint32)
        for n, kind in enumerate(VOTES):
            assert set(got[n, inside]) == {int(definitions.vote(kind, [v % 2 == 0 for v in values], mask))}, kind
        for n, kind in enumerate(REDUCTIONS):
            assert set(got[4 + n, inside]) == {definitions.redux(kind, values, mask)}, kind
        for n, kind in enumerate(("any", "all")):
            want = definitions.match(kind, values, mask)
            np.testing.assert_array_equal(got[12 + n, inside], np.array(want, np.uint32)[inside], kind)


def reductions_of_floats(run):
    kinds = ("fmin", "fmax", "fmax.abs", "fmin.NaN", "fmax.abs.NaN")

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, row = arch.thread_idx()[0], arch.block_idx()[0]
        for n, kind in enumerate(kinds):
            out[row, n, t] = cute.Float32._make(nvgpu.warp.redux(kind, x[row, t].ir_value(), word(-1)))

    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, 32)).astype(np.float32)
    x[1, 5], x[2] = np.nan, np.nan
    out = np.zeros((ROWS, len(kinds), 32), np.float32)
    run(kernel, x, out, grid=ROWS)
    for row in range(ROWS):
        for n, kind in enumerate(kinds):
            want = definitions.redux_float(kind, x[row].tolist(), 0xFFFFFFFF)
            np.testing.assert_array_equal(out[row, n], np.full(32, want, np.float32), kind)


TABLES = (0x96, 0xE8, 0xCA, 0x01, 0x80, 0xFF, 0x00, 0x6A)


@everywhere
def logic_of_words(run):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        a, b, c = (x[n, t].ir_value() for n in range(3))
        out[0, t] = cute.Int32._make(nvgpu.units.prmt(a, b, c))
        for n, table in enumerate(TABLES):
            out[1 + n, t] = cute.Int32._make(nvgpu.units.lop3(a, b, c, table))

    x = np.random.default_rng(4).integers(0, 1 << 32, (3, 256), dtype=np.uint64).astype(np.uint32)
    out = np.zeros((1 + len(TABLES), 256), np.int32)
    run(kernel, x.view(np.int32), out, block=256)
    for t, (a, b, c) in enumerate(x.T.tolist()):
        want = [definitions.prmt(a, b, c), *(definitions.lop3(a, b, c, table) for table in TABLES)]
        np.testing.assert_array_equal(out[:, t].view(np.uint32), want)


@everywhere
def pairs_of_floats(run):
    cases = [(kind, rounding) for kind in ("add", "sub", "mul", "fma") for rounding in ("rn", "rz", "rm", "rp")]

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        a, b, c = (vector_of([x[n, t], x[n, t + 64]], cute.Float32) for n in range(3))
        for n, (kind, rounding) in enumerate(cases):
            made = nvgpu.units.packed_f32x2(kind, a, b, c, rounding, False)
            for half, value in enumerate(elements_of(made, cute.Float32)):
                out[n, t + 64 * half] = value

    rng = np.random.default_rng(5)
    x = (rng.standard_normal((3, 128)) * 2.0 ** rng.integers(-40, 40, (3, 128))).astype(np.float32)
    x[:, :4] = [[3e38, -3e38, 1e-38, 1], [3e38, -3e38, 1e-7, 2.0**-24], [0, 1, 1e-45, 1]]  # overflow, subnormals, a tie
    out = np.zeros((len(cases), 128), np.float32)
    run(kernel, x, out, block=64)
    for n, (kind, rounding) in enumerate(cases):
        want = definitions.packed_f32x2(kind, *x.tolist(), rounding=rounding)
        np.testing.assert_array_equal(out[n], np.array(want, np.float32), f"{kind} {rounding}")


FUNCTIONS = ("rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos", "tanh")


@everywhere
def fast_functions(run):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, kind in enumerate(FUNCTIONS):
            out[n, t] = cute.Float32._make(nvgpu.units.approx(kind, x[n, t].ir_value()))

    rng = np.random.default_rng(6)
    x = np.stack(
        [rng.uniform(*((-math.pi, math.pi) if kind in ("sin", "cos") else (0.01, 20)), 512) for kind in FUNCTIONS]
    )
    x = x.astype(np.float32)
    out = np.zeros_like(x)
    run(kernel, x, out, block=512)
    for n, kind in enumerate(FUNCTIONS):
        want, error = zip(*(definitions.approx(kind, value) for value in x[n].tolist()), strict=True)
        assert (np.abs(out[n] - np.array(want)) <= np.array(error)).all(), kind


@everywhere
def atomic_operations(run):
    kinds = ("add", "min", "max", "umin", "umax", "and", "or", "xor", "exch", "inc", "dec")

    @cute.kernel
    def kernel(x: cute.Tensor, values: cute.Tensor, old: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, kind in enumerate(kinds):
            place = (x.iterator + (n * 128 + t)).ir_value()
            made = nvgpu.memory.atomic_rmw(kind, place, values[n, t].ir_value(), "relaxed", "gpu")
            old[n, t] = cute.Int32._make(made)

    rng = np.random.default_rng(7)
    x, values = words(rng, len(kinds), 128), words(rng, len(kinds), 128)
    before, old = x.copy(), np.zeros_like(x)
    run(kernel, x, values, old, block=128)
    np.testing.assert_array_equal(old, before)
    for n, kind in enumerate(kinds):
        pairs = zip(before[n].view(np.uint32).tolist(), values[n].view(np.uint32).tolist(), strict=True)
        want = [definitions.atomic_rmw(kind, element, value) for element, value in pairs]
        np.testing.assert_array_equal(x[n].view(np.uint32), want, kind)


def mbarriers(run):
    """Arrivals and bytes in any order, also such as complete several phases."""
    count = 10

    @cute.kernel
    def kernel(steps: cute.Tensor, out: cute.Tensor):
        barrier, row = arch.alloc_smem(cute.Int64, 1), arch.block_idx()[0]
        if arch.thread_idx()[0] == 0:
            arch.mbarrier_init(barrier, 3)
            for i in kiln.range_constexpr(
                count
            ):  # trying again at the same place what failed there would be a deadlock
                if steps[row, i, 0] != 0:
                    arch.mbarrier_arrive(barrier, arrive_count=steps[row, i, 0])
                else:
                    arch.mbarrier_expect_tx(barrier, steps[row, i, 1])
                for parity in kiln.range_constexpr(2):
                    out[row, i, parity] = cute.Int32(arch.mbarrier_test_wait(barrier, parity))

    rng = np.random.default_rng(9)
    steps, want = np.zeros((ROWS, count, 2), np.int32), np.zeros((ROWS, count, 2), np.int32)
    for row in range(ROWS):
        plain = definitions.Mbarrier(3)
        for i in range(count):
            if plain.missing_arrivals and rng.random() < 0.6:
                steps[row, i, 0] = rng.integers(1, plain.missing_arrivals + 1)
                plain.arrive(int(steps[row, i, 0]))
            else:
                open_ = plain.missing_bytes
                steps[row, i, 1] = -open_ if open_ and rng.random() < 0.7 else 16 * rng.integers(1, 9)
                plain.expect_tx(int(steps[row, i, 1]))
            want[row, i] = [plain.test_wait(parity) for parity in range(2)]
    assert (np.diff(want[:, :, 0], axis=1) != 0).sum() > ROWS  # phases
    out = np.zeros_like(want)
    run(kernel, steps, out, grid=ROWS)
    np.testing.assert_array_equal(out, want)


@everywhere
def compare_and_swap(run):
    @cute.kernel
    def kernel(x: cute.Tensor, compare: cute.Tensor, values: cute.Tensor):
        t = arch.thread_idx()[0]
        arch.atomic_cas(x.iterator + t, compare[t], values[t])

    rng = np.random.default_rng(10)
    x, compare, values = (rng.integers(0, 3, 128).astype(np.int32) for _ in range(3))
    want = [definitions.atomic_cas(*parts) for parts in zip(x.tolist(), compare.tolist(), values.tolist(), strict=True)]
    run(kernel, x, compare, values, block=128)
    np.testing.assert_array_equal(x, want)


# --- matrices --------------------------------------------------------------------------------------------------------

LOADS = [(n, transpose) for n in (1, 2, 4) for transpose in (False, True)]
UNPACKING = [(n, bits) for n in (1, 4) for bits in (4, 6)]
BYTE_LOADS = [(1, 0), (2, 0), (2, 4), (1, 6)]


def matrices_in_shared_memory(run, together, of_bytes):
    """Rows anywhere; `together`: the lanes meet once for several operations. `of_bytes`: those of sm_100a too."""
    loads = [(*case, 0) for case in LOADS] + [(*case[:1], False, case[1]) for case in UNPACKING if of_bytes]
    byte_loads = BYTE_LOADS if of_bytes else []

    def keep(out, place, made, t):
        for n, value in enumerate(elements_of(made, cute.Int32)):
            out[t, place + n] = value

    @cute.kernel
    def kernel(x: cute.Tensor, rows: cute.Tensor, out: cute.Tensor, back: cute.Tensor):
        tile, copy, t = shared(128), shared(128), arch.thread_idx()[0]
        for i in range(4):
            tile[i * 32 + t] = x[i * 32 + t]
        arch.sync_warp()
        pointer = (tile.iterator + rows[t] * 4).ir_value()
        place = 0
        for count, transpose, unpack in loads:
            type_ = ir.VectorType.get([count], cute.Int32.mlir_type)
            keep(out, place, nvgpu.mma.ldmatrix(pointer, type_, count, transpose, unpack or None), t)
            place += count
            if kiln.const_expr(not together):
                arch.sync_warp()
        for count, unpack in byte_loads:
            type_ = ir.VectorType.get([2 * count], cute.Int32.mlir_type)
            keep(out, place, nvgpu.mma.ldmatrix_bytes(pointer, type_, count, unpack or None), t)
            place += 2 * count
        registers = vector_of([x[t * 4 + n] for n in range(4)], cute.Int32)
        target = (copy.iterator + rows[t] * 4).ir_value()
        for n in kiln.range_constexpr(3 if of_bytes else 2):
            if kiln.const_expr(n < 2):
                nvgpu.mma.stmatrix(target, registers, 4, transpose=bool(n))
            else:
                nvgpu.mma.stmatrix_bytes(target, registers, 4)
            arch.sync_warp()
            for i in range(4):
                back[n, i * 32 + t] = copy[i * 32 + t]
            arch.sync_warp()

    rng = np.random.default_rng(8)
    x = rng.integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
    rows = rng.permutation(32).astype(np.int32)
    total = sum(n for n, _, _ in loads) + sum(2 * n for n, _ in byte_loads)
    out, back = np.zeros((32, total), np.int32), np.zeros((3, 128), np.int32)
    run(kernel, x.view(np.int32), rows, out, back)
    memory = [x.reshape(32, 4)[row].tobytes() for row in rows]
    want = [definitions.ldmatrix(memory, *case) for case in loads]
    want += [definitions.ldmatrix_bytes(memory, *case) for case in byte_loads]
    np.testing.assert_array_equal(out.view(np.uint32), np.concatenate([np.array(part, np.uint32) for part in want], 1))
    registers = x.reshape(32, 4).tolist()
    stored = [
        definitions.stmatrix(registers, 4),
        definitions.stmatrix(registers, 4, True),
        definitions.stmatrix_bytes(registers, 4),
    ]
    for n, written in enumerate(stored[: 3 if of_bytes else 2]):
        got = back[n].view(np.uint8).reshape(32, 16)
        np.testing.assert_array_equal(got[rows], np.stack([np.frombuffer(row, np.uint8) for row in written]))


# --- products --------------------------------------------------------------------------------------------------------

OF_DIALECT = ("f16", "bf16", "tf32", "f64", "s8", "u8", "e4m3", "e5m2")
PRODUCTS = [
    (shape, a, b, sums)
    for row in mma_shapes.MMA_ROWS
    if row.instruction == "mma.sync" and row.inputs[0] in OF_DIALECT
    for shape in row.shapes
    for sums in row.accumulators
    for a, b in ((row.inputs[0], row.inputs[-1]),)
]
NAMES = ["-".join(map(str, (*case[0], *case[1:]))) for case in PRODUCTS]
_ELEMENTS = {"f32": cute.Float32, "f16": cute.Float16, "f64": cute.Float64, "s32": cute.Int32}


def products(run, shape, a, b, sums, exact):
    """One product alone, then two of which one adds to the other: the CPU target makes them one function for a whole warp.

    `exact`: of small numbers, whose sums are the same in every order.
    """
    m, _, k = shape
    register, element = cute.Float64 if a == "f64" else cute.Int32, _ELEMENTS[sums]
    width = 64 if a == "f64" else 32
    counts = [m * k * mma_shapes.BITS[a] // 32 // width, 8 * k * mma_shapes.BITS[b] // 32 // width, m * 8 // 32]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        left, right, start = (
            vector_of([part[t, n] for n in range(count)], kind)
            for part, count, kind in zip((x, y, z), counts, (register, register, element), strict=True)
        )
        made = nvgpu.mma.mma_sync(shape, a, b, left, right, start)
        arch.sync_warp()
        chained = nvgpu.mma.mma_sync(shape, a, b, left, right, nvgpu.mma.mma_sync(shape, a, b, left, right, start))
        for n, value in enumerate((*elements_of(made, element), *elements_of(chained, element))):
            out[t, n] = value

    rng = np.random.default_rng(k)

    def drawn(count, kind):
        if kind in ("s8", "u8"):
            return rng.integers(-128, 127, (32, count)).astype(NUMPY[kind])
        if kind == "s32":  # at the ends of the range: sums wrap
            return rng.choice([-(1 << 31), (1 << 31) - 1, 5], (32, count)).astype(np.int32)
        numbers = rng.integers(-4, 5, (32, count)) if exact else rng.standard_normal((32, count))
        return numbers.astype(NUMPY[kind])

    sides = [drawn(held * width // mma_shapes.BITS[kind], kind) for held, kind in zip(counts, (a, b), strict=False)]
    c = drawn(counts[2], sums)
    out = np.zeros((32, 2 * counts[2]), c.dtype)
    registers = [side.view(np.float64 if a == "f64" else np.int32) for side in sides]
    run(kernel, *registers, c, out)
    x, y = (side.view(f"u{side.dtype.itemsize}").tolist() for side in sides)
    once = definitions.mma_sync(shape, a, b, sums, x, y, c.tolist())
    twice = definitions.mma_sync(shape, a, b, sums, x, y, once)
    np.testing.assert_array_equal(out, np.concatenate([np.array(part, c.dtype) for part in (once, twice)], 1))


# --- narrow floats and block scales (sm_120) -------------------------------------------------------------------------

NARROW_PRODUCTS = [("e2m1", "e4m3", "f32"), ("e3m2", "e2m3", "f16"), ("e5m2", "e2m1", "f32")]
SCALED_PRODUCTS = [
    ("mxf8f6f4", "e4m3", "e5m2", "ue8m0", 32, (0, 0, 0, 0)),
    ("mxf8f6f4", "e2m1", "e3m2", "ue8m0", 32, (3, 1, 2, 3)),
    ("mxf8f6f4", "e2m3", "e4m3", "ue8m0", 32, (1, 0, 1, 2)),
    ("mxf4", "e2m1", "e2m1", "ue8m0", 32, (2, 1, 0, 1)),
    ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", 32, (0, 0, 2, 0)),
    ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", 16, (0, 1, 0, 3)),
    ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 16, (0, 0, 0, 0)),
]
"""Kind, types of A, B and scale factors, elements that share one, and byte and thread of those of A and of B."""


def narrow_products(run, a, b, sums):
    """`mma.sync` of kind::f8f6f4 on all codes of its types, in bytes; sums of few numbers are the same in every order."""
    shape, element = (16, 8, 32), _ELEMENTS[sums]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        left, right = (vector_of([part[t, n] for n in range(count)], cute.Int32) for part, count in ((x, 4), (y, 2)))
        start = vector_of([z[t, n] for n in range(4)], element)
        for n, value in enumerate(elements_of(nvgpu.mma.mma_sync(shape, a, b, left, right, start), element)):
            out[t, n] = value

    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 256, (32, 16), dtype=np.uint8), rng.integers(0, 256, (32, 8), dtype=np.uint8)
    x[rng.random(x.shape) < 0.8] = 0
    c = rng.integers(-2, 3, (32, 4)).astype(NUMPY[sums])
    out = np.zeros_like(c)
    run(kernel, x.view(np.int32), y.view(np.int32), c, out)
    want = definitions.mma_sync(shape, a, b, sums, x.tolist(), y.tolist(), c.tolist())
    np.testing.assert_array_equal(out, np.array(want, c.dtype))


def _scale_factors(rng, kind, far):
    """Words of scale factors: near 1, or from the whole range with a NaN."""
    if not far:
        low, high = (124, 131) if kind == "ue8m0" else (0x30, 0x48)
        return rng.integers(low, high, (32, 4), dtype=np.uint8)
    made = rng.integers(0, 255 if kind == "ue8m0" else 127, (32, 4), dtype=np.uint8)
    made[9, :] = 255  # NaN in both types
    return made


def scaled_products(run, kind, a, b, scale, vector, selectors):
    """`mma.sync` with block scales: alone, and twice of which one adds to the other; on ordinary and on far numbers."""
    k = 32 if kind == "mxf8f6f4" else 64
    shape = (16, 8, k)

    @cute.kernel
    def kernel(words: cute.Tensor, z: cute.Tensor, out: cute.Tensor):
        t, row = arch.thread_idx()[0], arch.block_idx()[0]
        left, right = (vector_of([words[row, t, n] for n in held], cute.Int32) for held in (range(4), range(4, 6)))
        start = vector_of([z[row, t, n] for n in range(4)], cute.Float32)

        def product(added):
            factors = [words[row, t, n].ir_value() for n in (6, 7)]
            return nvgpu.mma.mma_block_scale(shape, kind, a, b, scale, vector, left, right, added, *factors, *selectors)

        made = product(start)
        arch.sync_warp()
        chained = product(product(start))
        for n, value in enumerate((*elements_of(made, cute.Float32), *elements_of(chained, cute.Float32))):
            out[row, t, n] = value

    rng = np.random.default_rng(k + vector)
    rows = 4
    x, y = (rng.integers(0, 256, (rows, 32, count), dtype=np.uint8) for count in (16, 8))
    for side, element in ((x, a), (y, b)):  # numbers that are not finite only in the last rows
        if element in ("e4m3", "e5m2"):
            side[:2] &= 0xBB
    y[1][rng.random(y[1].shape) < 0.7] = 0
    c = rng.standard_normal((rows, 32, 4)).astype(np.float32)
    c[2:] = rng.integers(0, 1 << 32, (2, 32, 4), dtype=np.uint64).astype(np.uint32).view(np.float32)
    p, q = (np.stack([_scale_factors(rng, scale, n >= 2) for n in range(rows)]) for _ in range(2))
    out = np.zeros((rows, 32, 8), np.float32)
    run(kernel, np.concatenate([x, y, p, q], 2).view(np.int32), c, out, grid=rows)
    for row in range(rows):
        halves = [
            side[row] if k == 32 else np.stack([side[row] & 15, side[row] >> 4], 2).reshape(32, -1) for side in (x, y)
        ]
        words = [side[row].view(np.uint32)[:, 0].tolist() for side in (p, q)]

        def defined(added, halves=halves, words=words):
            left, right = (side.tolist() for side in halves)
            types, (word_a, word_b) = (a, b, scale), words
            return definitions.mma_block_scale(kind, types, vector, left, right, added, word_a, word_b, selectors)

        once = defined(c[row].tolist())
        want = np.concatenate([np.array(part, np.float32) for part in (once, defined(once))], 1)
        np.testing.assert_array_equal(
            out[row].view(np.uint32), np.where(np.isnan(want), 0x7FFFFFFF, want.view(np.uint32))
        )
