"""Long vectors are cut into short ones: the same numbers (on the CPU target), and no long vector in what LLVM gets."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest
from ir_testing import after, check

import kiln
from kiln import cute
from kiln.base_dsl.typing import Float16, Float32, Int32
from kiln.cute.runtime import from_dlpack
from kiln.mlir import PACKAGE, context, ir
from kiln.targets.host import jit
from kiln.targets.host import lower as cpu_lower
from kiln.targets.lowering import vector_legalisation
from kiln.targets.lowering.vector_legalisation import legalise_vectors

SIZE = 64


@pytest.fixture
def cut(monkeypatch):
    """The CPU target cuts vectors too; the names of operations that had long vectors, before and after."""
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    original, seen = cpu_lower.expand_narrow_floats, []

    def long_ones(module):
        found = []

        def visit(op):
            if any(vector_legalisation.is_long(v.type) for v in (*op.results, *op.operands)):
                found.append(op.name)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        return found

    def expand(module):
        original(module)
        before = long_ones(module)
        legalise_vectors(module)
        module.operation.verify()
        seen.append((before, long_ones(module)))

    monkeypatch.setattr(cpu_lower, "expand_narrow_floats", expand)
    return seen


def arrays(count, size=SIZE):
    random = np.random.default_rng(0)
    return [random.standard_normal(size).astype(np.float32) for _ in range(count)]


def run(function, *given):
    with kiln.target("cpu"):
        cute.compile(function, *map(from_dlpack, given))(*map(from_dlpack, given))


@pytest.mark.parametrize("size", [SIZE, 61])
def test_arithmetic(cut, size):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor):
        x, y = a.load(), b.load()
        z = cute.where(x > y, x * 2.0 + y, cute.math.exp(-y))
        c.store(z)
        d.store((z.to(Float16) * x.to(Float16)).to(Float32))

    a, b, c, d = arrays(4, size)
    run(program, a, b, c, d)
    expected = np.where(a > b, a * 2 + b, np.exp(-b))
    np.testing.assert_allclose(c, expected, rtol=1e-6)
    np.testing.assert_allclose(d, c.astype(np.float16) * a.astype(np.float16), rtol=2e-3)
    before, after = cut[0]
    assert "arith.mulf" in before
    assert not [name for name in after if name.startswith(("arith.", "math."))]


def test_parts_and_sums(cut):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kept = cute.make_rmem_tensor(a.shape, Float32)
        kept.store(a.load() + b.load())
        total = kept.load().reduce(cute.ReductionOp.ADD, 0.0, 0)
        turned = cute.make_tensor(
            kept.iterator, cute.make_layout((8, 8), stride=(8, 1))
        )  # its elements in another order
        value = turned.load() * total
        for i in kiln.range_constexpr(SIZE):
            c[i] = value[i]

    a, b, c = arrays(3)
    run(program, a, b, c)
    total = a + b
    np.testing.assert_allclose(c, total.reshape(8, 8).T.ravel() * total.sum(dtype=np.float64), rtol=1e-4)


def test_carried_through_a_loop(cut):
    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor, n: Int32):
        value = a.load()
        for _ in range(n):
            value = value * 0.5 + 1.0
        b.store(value)

    a, b = arrays(2)
    with kiln.target("cpu"):
        cute.compile(program, from_dlpack(a), from_dlpack(b), Int32(3))(from_dlpack(a), from_dlpack(b), 3)
    np.testing.assert_allclose(b, ((a * 0.5 + 1) * 0.5 + 1) * 0.5 + 1, rtol=1e-6)


def test_read_in_pairs(cut):
    """Rows of a fragment are pairs of elements with gaps between them: no vector is longer than a piece of them."""

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor):
        kept = cute.make_rmem_tensor(SIZE, Float32)
        for i in kiln.range_constexpr(SIZE):
            kept[i] = a[i]
        rows = cute.make_tensor(kept.iterator, cute.make_layout((2, (2, SIZE // 4)), stride=(2, (1, 4))))
        for row in kiln.range_constexpr(2):
            part = rows[row, None]
            part.store(part.load() * Float32(row + 2))
        for i in kiln.range_constexpr(SIZE):
            b[i] = kept[i]

    a, b = arrays(2)
    run(program, a, b)
    np.testing.assert_array_equal(b, a * np.tile([2, 2, 3, 3], SIZE // 4).astype(np.float32))
    before, after = cut[0]
    assert "vector.shuffle" in before
    assert not after


def module(body):
    return ir.Module.parse(f"func.func @f(%a: vector<32xf32>, %s: f32, %c: i1) {{ {body} return }}")


CASES = {
    "slices of any place": """
        %0 = arith.addf %a, %a : vector<32xf32>
        %1 = vector.extract_strided_slice %0 {offsets = [6], sizes = [8], strides = [1]} : vector<32xf32> to vector<8xf32>
        %2 = vector.extract_strided_slice %0 {offsets = [5], sizes = [2], strides = [1]} : vector<32xf32> to vector<2xf32>
        "t.use"(%1, %2) : (vector<8xf32>, vector<2xf32>) -> ()""",
    "a slice that is no piece": """
        %0 = arith.addf %a, %a : vector<32xf32>
        %1 = vector.broadcast %s : f32 to vector<2xf32>
        %2 = vector.insert_strided_slice %1, %0 {offsets = [3], strides = [1]} : vector<2xf32> into vector<32xf32>
        "t.use"(%2) : (vector<32xf32>) -> ()""",
    "two one after the other, and half of them": """
        %0 = arith.addf %a, %a : vector<32xf32>
        %1 = vector.extract_strided_slice %0 {offsets = [0], sizes = [16], strides = [1]} : vector<32xf32> to vector<16xf32>
        %2 = vector.shuffle %1, %1 [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
                                    25, 26, 27, 28, 29, 30, 31] : vector<16xf32>, vector<16xf32>
        %3 = arith.mulf %2, %a : vector<32xf32>
        "t.use"(%3, %1) : (vector<32xf32>, vector<16xf32>) -> ()""",
    "one operand twice, and a scalar condition": """
        %0 = arith.mulf %a, %a : vector<32xf32>
        %1 = arith.select %c, %0, %0 : vector<32xf32>
        %2 = vector.shuffle %1, %0 [0, 33, 63, 31] : vector<32xf32>, vector<32xf32>
        "t.use"(%1, %1, %2) : (vector<32xf32>, vector<32xf32>, vector<4xf32>) -> ()""",
}


@pytest.mark.parametrize("name", CASES)
def test_what_stays_gets_what_it_needs(name):
    with context() as ctx, ir.Location.unknown():
        before, ctx.allow_unregistered_dialects = ctx.allow_unregistered_dialects, True
        try:
            made = module(CASES[name])
            legalise_vectors(made)
            made.operation.verify()
            text = str(made)
            assert not re.search(r"(addf|mulf|select) .*: vector<32xf32>", text)
            assert '"t.use"' in text
        finally:
            ctx.allow_unregistered_dialects = before


def test_a_last_piece_that_is_shorter():
    text = after(
        """
        func.func @f(%a: vector<35xf32>, %b: vector<3xf32>) -> (vector<35xf32>, vector<19xf32>, f32, vector<3xf32>) {
          %c = arith.constant dense<2.0> : vector<35xf32>
          %s = arith.mulf %a, %c : vector<35xf32>
          %i = vector.insert_strided_slice %b, %s {offsets = [32], strides = [1]} : vector<3xf32> into vector<35xf32>
          %l = vector.extract_strided_slice %i {offsets = [16], sizes = [19], strides = [1]} : vector<35xf32> to vector<19xf32>
          %e = vector.extract %s[34] : f32 from vector<35xf32>
          %t = vector.extract_strided_slice %i {offsets = [31], sizes = [3], strides = [1]} : vector<35xf32> to vector<3xf32>
          func.return %i, %l, %e, %t : vector<35xf32>, vector<19xf32>, f32, vector<3xf32>
        }""",
        legalise_vectors,
    )
    assert not re.search("(mulf|constant|extract) .*vector<(35|19)xf32>$", text, re.MULTILINE)
    assert text.count("arith.mulf") == 9 and "arith.mulf" in text and "vector.extract %" in text
    assert re.search(r"arith.mulf .* : vector<3xf32>", text)
    assert re.search(r"insert_strided_slice %\S+, %\S+ \{offsets = \[16\].*vector<3xf32> into vector<19xf32>", text)


@pytest.mark.parametrize("size", [300, 301])
def test_the_host_gets_no_vectors_of_hundreds_of_elements(monkeypatch, size):
    """Passes of LLVM take time with the square of their length, and more than 65,535 elements end the process."""
    texts, original = [], jit.optimize
    monkeypatch.setattr(jit, "optimize", lambda text, *more: (texts.append(text), original(text, *more))[1])
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")

    @cute.jit
    def program(a: cute.Tensor, b: cute.Tensor):
        value = a.load()
        b.store(cute.where(value > 0, value * 2.0 + 1.0, value))

    a, b = arrays(2, size)
    run(program, a, b)
    np.testing.assert_array_equal(b, np.where(a > 0, a * 2 + np.float32(1), a))
    (text,) = (text for text in texts if "fmul" in text)
    assert max(int(n) for n in re.findall(r"<(\d+) x (?:float|i1)>", text)) == vector_legalisation.LENGTH


def test_epilogues_reach_llvm_in_pieces(monkeypatch):
    from kiln import kernels
    from kiln.targets.nvidia import codegen
    from kiln.testing import dry_run

    texts, original = [], codegen.optimize
    monkeypatch.setattr(
        codegen, "optimize", lambda text, *more, **options: (texts.append(text), original(text, *more, **options))[1]
    )
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    a, b = np.zeros((512, 64), np.float16), np.zeros((64, 512), np.float16)
    with dry_run("sm_90a"):
        kernels.gemm(a, b, alpha=2.0, config=kernels.Sm80GemmConfig((128, 128, 64), (2, 2), 3))
    lengths = [int(n) for n in re.findall(r"<(\d+) x (?:float|half)>", texts[0])]
    assert lengths
    assert max(lengths) <= 16


@pytest.mark.parametrize("dialect", ["arith", "math"])
def test_all_arithmetic_is_known(dialect):
    """Operations are looked for by name: one that is missing would not be cut."""
    generated = vars(importlib.import_module(f"{PACKAGE}.dialects._{dialect}_ops_gen")).values()
    names = {getattr(kind, "OPERATION_NAME", "") for kind in generated if isinstance(kind, type)} - {""}
    assert len(names) > 40
    not_element_wise = {"arith.flush_denormals", "arith.scaling_extf", "arith.scaling_truncf"}
    assert names - not_element_wise <= set(vector_legalisation.NAMES)


# --- as IR -----------------------------------------------------------------------------------------------------------


def test_a_chain_of_operations_is_cut_once():
    """Pieces go from one operation to the next; they are put together where the whole is needed, and only there."""
    text = after(
        """
        func.func @f(%a: vector<32xf32>, %b: vector<32xf32>) -> vector<32xf32> {
          %s = arith.addf %a, %b : vector<32xf32>
          %r = arith.mulf %s, %s : vector<32xf32>
          func.return %r : vector<32xf32>
        }""",
        legalise_vectors,
    )
    check(
        text,
        """
        func.func @f(%a: vector<32xf32>, %b: vector<32xf32>)
        %first = vector.extract_strided_slice %a {offsets = [0], sizes = [4], strides = [1]}
        %last = vector.extract_strided_slice %a {offsets = [28], sizes = [4], strides = [1]}
        %s = arith.addf %first, %t : vector<4xf32>
        %e = arith.addf %last, %u : vector<4xf32>
        not: vector<32xf32>
        %r = arith.mulf %s, %s : vector<4xf32>
        %q = arith.mulf %e, %e : vector<4xf32>
        vector.insert_strided_slice %r, %p {offsets = [0], strides = [1]} : vector<4xf32> into vector<32xf32>
        %all = vector.insert_strided_slice %q, %o {offsets = [28]
        return %all
        """,
    )
    assert text.count("arith.addf") == text.count("arith.mulf") == 8


@pytest.mark.parametrize(
    "body",
    [
        "%r = arith.addf %a, %a : vector<8xf32>",  # short
        "%r = vector.shuffle %a, %a [7, 6, 5, 4, 3, 2, 1, 0] : vector<8xf32>, vector<8xf32>",
    ],
)
def test_what_stays_as_it_is(body: str):
    source = f"func.func @f(%a: vector<8xf32>) -> vector<8xf32> {{ {body} func.return %r : vector<8xf32> }}"
    assert after(source, legalise_vectors) == after(source, lambda module: None)


MEMORY = '!cute.ptr<f16, "rmem", 32>'


def test_accesses_to_a_threads_own_memory_are_cut():
    """By 16 bytes: eight elements of 16 bits, two pieces."""
    text = after(
        f"""
        func.func @f(%m: {MEMORY}) {{
          %at = arith.constant 8 : i32
          %x = "cute.load"(%m, %at) {{alignment = 16 : i64}} : ({MEMORY}, i32) -> vector<32xf16>
          %y = arith.addf %x, %x : vector<32xf16>
          "cute.store"(%y, %m, %at) {{alignment = 16 : i64}} : (vector<32xf16>, {MEMORY}, i32) -> ()
          func.return
        }}""",
        legalise_vectors,
    )
    assert "vector<32xf16>" not in text
    assert text.count("cute.load") == text.count("cute.store") == 4
    assert text.count("arith.addf") == 8
    assert [int(n) for n in re.findall(r"arith.constant (\d+) : i32", text)].count(24) == 1


@pytest.mark.parametrize("memory, offset, alignment", [
    ('!cute.ptr<f16, "gmem", 32>', "%at", 32), (MEMORY, "%n", 16), (MEMORY, "%at", 4),
])  # fmt: skip
def test_other_accesses_stay(memory: str, offset: str, alignment: int):
    """To other memory, at places that are not known, and not aligned."""
    source = f"""
        func.func @f(%m: {memory}, %n: i32) {{
          %at = arith.constant 8 : i32
          %x = "cute.load"(%m, {offset}) {{alignment = {alignment} : i64}} : ({memory}, i32) -> vector<32xf16>
          "cute.store"(%x, %m, {offset}) {{alignment = {alignment} : i64}} : (vector<32xf16>, {memory}, i32) -> ()
          func.return
        }}"""
    assert after(source, legalise_vectors) == after(source, lambda module: None)
