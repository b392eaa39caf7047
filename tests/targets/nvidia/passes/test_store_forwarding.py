"""What a thread reads of its own memory is handed on as a value: the same numbers (on the CPU target), fewer accesses."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ir_testing import after, check
from nvidia_testing import compile_for, floats

import kiln
from kiln import cute
from kiln.base_dsl.typing import BFloat16, Float16, Float32, Int16, Int32
from kiln.cute.runtime import from_dlpack
from kiln.mlir import find, ir
from kiln.targets.host import lower as cpu_lower
from kiln.targets.nvidia.passes import store_forwarding
from kiln.targets.nvidia.passes.if_conversion import convert_branches

SIZE = 16


@pytest.fixture
def handed_on(monkeypatch):
    """The CPU target hands values on too; accesses to memory of threads, before and after."""
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    original, seen = cpu_lower.expand_narrow_floats, []

    def accesses(function):
        found = []

        def visit(op):
            if op.name in store_forwarding.ACCESSES:
                found.append((op, op.name))
            return ir.WalkResult.ADVANCE

        function.walk(visit, ir.WalkOrder.PRE_ORDER)
        return found

    def count(function):
        names = [name for op, name in accesses(function) if "rmem" in str(op)]
        return names.count("cute.load"), names.count("cute.store")

    def expand(module):
        original(module)
        convert_branches(module)
        module.operation.verify()
        for op in module.body.operations:
            if op.operation.name == "func.func":
                before = count(op.operation)
                store_forwarding.forward_stores(dict(enumerate(accesses(op.operation))))
                module.operation.verify()
                seen.append((before, count(op.operation)))

    monkeypatch.setattr(cpu_lower, "expand_narrow_floats", expand)
    return seen


def run(function, *given):
    arguments = [from_dlpack(x) if isinstance(x, np.ndarray) else x for x in given]
    with kiln.target("cpu"):
        cute.compile(function, *arguments)(*arguments)


def part(tensor, first, count):
    return cute.make_tensor(tensor.iterator + first, cute.make_layout(count))


def test_written_and_read_again(handed_on):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor):
        kept = cute.make_rmem_tensor(SIZE, Float32)
        kept.store(a.load())
        for _ in kiln.range_constexpr(3):
            kept.store(kept.load() * 2.0 + 1.0)
        b.store(kept.load())

    a, b = np.arange(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
    run(program, a, b)
    np.testing.assert_array_equal(b, ((a * 2 + 1) * 2 + 1) * 2 + 1)
    (_, stores), after = handed_on[0]
    assert stores
    assert after == (0, 0)


def test_parts_and_other_types(handed_on):
    """Parts of what was written, and the same bits as another type."""

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kept = cute.make_rmem_tensor(8, Float16)
        kept.store(a.load())
        bits = cute.recast_tensor(kept, Int16)
        b.store(part(bits, 4, 4).load())
        c[0] = kept[5]
        part(kept, 2, 2).store(part(a, 6, 2).load())
        c[1] = kept[3]

    a = np.arange(8, dtype=np.float16)
    b, c = np.zeros(4, np.int16), np.zeros(2, np.float16)
    run(program, a, b, c)
    np.testing.assert_array_equal(b, a.view(np.int16)[4:])
    np.testing.assert_array_equal(c, [5, 7])
    assert handed_on[0][1] == (0, 0)


def test_what_a_branch_or_a_loop_writes(handed_on):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, n: Int32):
        kept = cute.make_rmem_tensor(4, Float32)
        kept.store(part(a, 0, 4).load())
        if n > 2:
            kept[1] = Float32(-1.0)
        for i in range(n):
            kept[2] = kept[2] + kept[3]
            kept[3] = a[i]
        b.store(kept.load())

    a = np.arange(SIZE, dtype=np.float32)
    for n in (0, 2, 3):
        expected = a[:4].copy()
        if n > 2:
            expected[1] = -1
        for i in range(n):
            expected[2] += expected[3]
            expected[3] = a[i]
        b = np.zeros(4, np.float32)
        run(program, a, b, Int32(n))
        np.testing.assert_array_equal(b, expected)


def test_a_mask(handed_on):
    """Elements that branches set are chosen, and what is made of them is no memory either."""

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, n: Int32):
        kept = cute.make_rmem_tensor(4, Float32)
        kept.store(part(a, 0, 4).load())
        for i in kiln.range_constexpr(4):
            if i >= n:
                kept[i] = Float32(-1.0)
        b.store(kept.load())

    a = np.arange(SIZE, dtype=np.float32)
    for n in range(5):
        b = np.zeros(4, np.float32)
        run(program, a, b, Int32(n))
        np.testing.assert_array_equal(b, np.where(np.arange(4) >= n, -1, a[:4]))
        assert handed_on[-1][1] == (0, 0)


def test_branches_that_stay(handed_on):
    """One that does more than to set an element; one whose element lies outside where it is not taken."""

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, n: Int32):
        kept = cute.make_rmem_tensor(4, Float32)
        kept.store(part(a, 0, 4).load())
        if n > 1:
            kept[0] = Float32(-1.0)
        else:
            kept[1] = Float32(-2.0)
        if n < 4:
            kept[n] = Float32(-3.0)
        if n > 2:
            kept[2] = a[n - 1]
        b.store(kept.load())

    a = np.arange(4, dtype=np.float32)
    for n in (0, 2, 3, 4):
        expected = a.copy()
        expected[0 if n > 1 else 1] = -1 if n > 1 else -2
        if n < 4:
            expected[n] = -3
        if n > 2:
            expected[2] = a[n - 1]
        b = np.zeros(4, np.float32)
        run(program, a, b, Int32(n))
        np.testing.assert_array_equal(b, expected)


def test_memory_at_places_only_known_later_stays(handed_on):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, n: Int32):
        kept = cute.make_rmem_tensor(4, Float32)
        kept.store(part(a, 0, 4).load())
        kept[n] = Float32(-1.0)
        b.store(kept.load())

    a, b = np.arange(SIZE, dtype=np.float32), np.zeros(4, np.float32)
    run(program, a, b, Int32(2))
    np.testing.assert_array_equal(b, [0, 1, -1, 3])
    before, after = handed_on[0]
    assert before == after


# --- as IR -----------------------------------------------------------------------------------------------------------


def forwarded(body: str) -> str:
    """A function with memory of its own, `%own`, after the pass."""
    source = f"""
    func.func @k(%c: i1, %v: f32, %u: f32, %w: vector<4xf32>, %n: i32, %out: P<f32>) {{
      %own = "cute.alloc_rmem"() {{count = 4 : i64}} : () -> R<f32>
      %i0 = arith.constant 0 : i32
      %i1 = arith.constant 1 : i32
      {body}
      func.return
    }}"""

    def run(module):
        accesses = [
            (op, op.name)
            for op in find(module.operation, store_forwarding.ACCESSES)
            if op.parent.name != "builtin.module"
        ]
        store_forwarding.forward_stores(dict(enumerate(accesses)))

    return after(source, run)


def write(value: str, place: str = "%i0", type_: str = "f32", memory: str = "%own", kind: str = "R<f32>") -> str:
    return f'"cute.store"({value}, {memory}, {place}) : ({type_}, {kind}, i32) -> ()\n'


def read(name: str, place: str = "%i0", type_: str = "f32") -> str:
    return f'{name} = "cute.load"(%own, {place}) : (R<f32>, i32) -> {type_}\n'


def give(value: str) -> str:
    return write(value, memory="%out", kind="P<f32>")


def test_a_read_is_the_value_that_was_written():
    text = forwarded(write("%v") + write("%u", "%i1") + read("%x", "%i1") + give("%x"))
    check(
        text,
        """
        func.func @k(%c: i1, %v: f32, %u: f32, %w: vector<4xf32>, %n: i32, %out:
        not: cute.load
        "cute.store"(%u, %out,
        not: cute.store
        return
        """,
    )


def test_a_part_of_a_vector_that_was_written():
    text = forwarded(write("%w", type_="vector<4xf32>") + read("%x", "%i1") + give("%x"))
    check(
        text, 'func.func @k(%c: i1, %v: f32, %u: f32, %w:\n%x = vector.extract %w[1]\n"cute.store"(%x,\nnot: cute.load'
    )


def test_the_last_write_counts_and_the_first_is_gone():
    text = forwarded(write("%v") + write("%u") + read("%x") + give("%x"))
    check(text, 'func.func @k(%c: i1, %v: f32, %u: f32,\nnot: %v\n"cute.store"(%u,\nnot: cute.store')


@pytest.mark.parametrize(
    "body",
    [
        write("%v") + "scf.if %c {" + write("%u") + "}" + read("%x") + give("%x"),  # one of two
        write("%v") + write("%u", "%n") + read("%x") + give("%x"),  # one of four
        "scf.if %c {" + write("%v") + "}" + read("%x") + give("%x"),
        read("%x") + give("%x"),  # nobody wrote it
    ],
    ids=["a branch wrote", "somewhere", "perhaps", "never written"],
)
def test_reads_that_stay(body: str):
    text = forwarded(body)
    check(text, '%x = "cute.load"\n"cute.store"(%x,')
    assert text.count("cute.store") == body.count("cute.store")


# --- programs made at random -----------------------------------------------------------------------------------------


def made(generator: random.Random, depth: int = 0) -> list:
    """Steps that write, read, and branches and loops of steps."""
    steps = []
    for _ in range(generator.randint(2, 6)):
        kind = generator.choice(("write", "read", "move", "copy", "set") + ("if", "for") * (depth < 2))
        if kind in ("if", "for"):
            steps.append((kind, generator.randint(0, 3), made(generator, depth + 1)))
        else:
            count = generator.choice((1, 2, 4))
            first, to = (count * generator.randrange(SIZE // 2 // count) for _ in range(2))
            steps.append((kind, first, count, to))
    return steps


@cute.jit
def play(steps: kiln.Constexpr, kept: cute.Tensor, a: cute.Tensor, b: cute.Tensor):
    for step in kiln.range_constexpr(len(steps)):
        kind = steps[step][0]
        if kiln.const_expr(kind == "if"):
            if a[steps[step][1]] > 0.5:
                play(steps[step][2], kept, a, b)
        elif kiln.const_expr(kind == "for"):
            for _ in range(a[steps[step][1]].to(Int32) + 1):
                play(steps[step][2], kept, a, b)
        else:
            first, count, to = steps[step][1:]
            if kiln.const_expr(kind == "write"):
                part(kept, first, count).store(part(a, to, count).load() + part(b, first, count).load())
            elif kiln.const_expr(kind == "move"):
                part(kept, first, count).store(part(kept, to, count).load() * 0.5)
            elif kiln.const_expr(kind == "copy"):
                part(kept, first, count).store(part(kept, to, count).load())
            elif kiln.const_expr(kind == "set"):
                if a[to] > 0.5:
                    kept[first] = a[count]
            else:
                part(b, to, count).store(part(b, to, count).load() + part(kept, first, count).load())


def played(steps, kept, a, b):
    """The same in numpy."""
    for kind, *rest in steps:
        if kind == "if":
            if a[rest[0]] > 0.5:
                played(rest[1], kept, a, b)
        elif kind == "for":
            for _ in range(int(a[rest[0]]) + 1):
                played(rest[1], kept, a, b)
        else:
            first, count, to = rest
            here, there = slice(first, first + count), slice(to, to + count)
            if kind == "write":
                kept[here] = a[there] + b[here]
            elif kind == "move":
                kept[here] = kept[there] * np.float32(0.5)
            elif kind == "copy":
                kept[here] = kept[there].copy()
            elif kind == "set":
                if a[to] > 0.5:
                    kept[first] = a[count]
            else:
                b[there] += kept[here]


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(16))
def test_any_program(handed_on, seed):
    steps = made(random.Random(seed))

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor):
        kept = cute.make_rmem_tensor(SIZE // 2, Float32)
        kept.store(part(a, 0, SIZE // 2).load())
        play(steps, kept, a, b)
        part(b, SIZE // 2, SIZE // 2).store(kept.load())

    a, b = np.random.default_rng(seed).integers(0, 2, (2, SIZE)).astype(np.float32)
    kept, expected = a[: SIZE // 2].copy(), b.copy()
    played(steps, kept, a, expected)
    expected[SIZE // 2 :] = kept
    run(program, a, b)
    np.testing.assert_array_equal(b, expected)


# --- products --------------------------------------------------------------------------------------------------------


def test_products_meet_in_registers():
    """Sums of products never go through memory between two steps, and no vector is made of them."""

    class Product:
        @cute.jit
        def __call__(self, c: cute.Tensor):
            self.kernel(c).launch(grid=[1, 1, 1], block=[32, 1, 1])

        @cute.kernel
        def kernel(self, c: cute.Tensor):
            mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
            a, b = (cute.make_rmem_tensor(shape, BFloat16) for shape in ((8, 1, 4), (4, 2, 4)))
            a.fill(1.0)
            b.fill(2.0)
            sums = cute.make_rmem_tensor((4, 1, 2), Float32)
            sums.fill(0.0)
            for k in kiln.range_constexpr(4):
                cute.gemm(mma, sums, a[None, None, k], b[None, None, k], sums)
            lane = cute.arch.lane_idx()
            for i in kiln.range_constexpr(8):
                c[lane, i] = sums[i]

    text = compile_for(Product(), floats(32, 8)).executable.artifacts["llvm_unoptimized"]
    assert text.count("mma.sync") == 8
    assert text.count("insertelement <4 x float>") <= 8  # the last two sums, at most
