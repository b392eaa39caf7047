"""The `cute` dialect: types print and parse back, effects are right, builders build what the docs say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiln.base_dsl import trace
from kiln.dialects import cute
from kiln.mlir import context, ir, passmanager


@pytest.fixture
def building() -> Iterator[ir.Module]:
    """A module with a function to build in."""
    cute.load_dialect()
    with context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f() { func.return }")
    block = module.body.operations[0].regions[0].blocks[0]
    made = trace.Trace(None, module)
    with trace.activate(made), trace.inside_function(made, block, "test"):
        with ir.InsertionPoint.at_block_begin(block):
            yield module


def types() -> tuple[ir.Type, ir.Type, ir.Type]:
    with context():
        return ir.F32Type.get(), ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)


def test_types_print_as_users_expect() -> None:
    f32, _, _ = types()
    assert str(cute.ptr_type(f32, "gmem", 16)) == '!cute.ptr<f32, "gmem", 16 : i64>'
    memref = cute.memref_type(f32, "smem", 0, "(128,256):(256,1)")
    assert str(memref) == '!cute.memref<f32, "smem", 4 : i64, "(128,256):(256,1)">'
    with context():
        assert ir.Type.parse(str(memref)) == memref
    assert cute.is_memref(memref)
    assert not cute.is_ptr(memref)


def test_layouts_say_the_width_of_their_dynamic_leaves() -> None:
    f32, _, _ = types()
    found = cute.info(cute.memref_type(f32, "gmem", 16, "(?,?{i64},4):(?{div=8},1,?{i64 div=4})"))
    assert found.leaves == (32, 64, 32, 64)
    assert (found.element, found.space, found.alignment) == (f32, "gmem", 16)
    assert cute.info(cute.ptr_type(f32)).layout is None


@pytest.mark.parametrize(
    ("type_", "bits", "bytes_"),
    [("i1", 8, 1), ("i4", 4, 1), ("f4E2M1FN", 4, 1), ("f6E2M3FN", 8, 1), ("f8E5M2", 8, 1), ("f16", 16, 2),
     ("tf32", 32, 4), ("f64", 64, 8), ("i128", 128, 16), ("!llvm.ptr", 64, 8)],
)  # fmt: skip
def test_element_storage(type_: str, bits: int, bytes_: int) -> None:
    with context():
        parsed = ir.Type.parse(type_)
    assert (cute.element_bits(parsed), cute.element_bytes(parsed)) == (bits, bytes_)


def test_bad_types_are_refused() -> None:
    f32, _, _ = types()
    with pytest.raises(ValueError, match="address space 'global'"):
        cute.ptr_type(f32, "global")
    with pytest.raises(ValueError, match="alignment 12"):
        cute.ptr_type(f32, "gmem", 12)


def test_builders(building: ir.Module) -> None:
    f32, i32, i64 = types()
    pointer = cute.ptr_type(f32, "gmem", 16)
    memref = cute.memref_type(f32, "gmem", 16, "(?,?{i64}):(1,?)")
    one, wide = trace.constant(i32, 1), trace.constant(i64, 1)
    p = cute.int_to_ptr(wide, pointer)
    p = cute.cast_ptr(cute.ptr_add(p, one, pointer), pointer)
    v = cute.view(p, memref, [one, wide, one])
    cute.leaf(v, 1, 64)
    x = cute.load(v, cute.index("thread_idx", 2), f32)
    cute.store(x, cute.iter_(cute.cast_memref(v, memref), pointer), wide, alignment=16)
    cute.alloc_rmem(8, cute.ptr_type(f32, "rmem"))
    cute.alloc_smem(64, 128, cute.ptr_type(f32, "smem", 128))
    cute.dynamic_smem(cute.ptr_type(f32, "smem", 1024))
    cute.undef(memref)
    cute.ptr_to_int(p)
    cute.index("lane_idx")
    cute.printf("%d %lld\n", [one, wide])
    cute.assert_(trace.constant(ir.IntegerType.get_signless(1), 1), "x = %d", [one])
    cute.launch("k", [wide] * 3, [wide] * 3, [wide] * 3, wide, wide, [p, v, one], use_pdl=True, events=["programmatic"])
    building.operation.verify()
    text = str(building)
    assert "operandSegmentSizes = array<i32: 1, 2, 1>" in text
    assert "cute.use_pdl" in text
    with context():
        assert str(ir.Module.parse(text)) == text


def test_view_counts_its_leaves(building: ir.Module) -> None:
    f32, i32, i64 = types()
    p = cute.int_to_ptr(trace.constant(i64, 0), cute.ptr_type(f32))
    with pytest.raises(ValueError, match="has 1 dynamic leaves, 0 were given"):
        cute.view(p, cute.memref_type(f32, "gmem", 4, "(?):(1)"), [])


def optimized(body: str) -> str:
    cute.load_dialect()
    with context():
        module = ir.Module.parse(f'func.func @f(%p: !cute.ptr<f32, "gmem", 4>, %i: i32) -> (f32, f32) {{ {body} }}')
        passmanager.PassManager.parse("builtin.module(cse)").run(module.operation)
    return str(module)


LOAD = '%{} = "cute.load"(%p, %i) : (!cute.ptr<f32, "gmem", 4>, i32) -> f32\n'


def test_equal_loads_are_merged_but_not_across_a_store() -> None:
    text = optimized(LOAD.format("a") + LOAD.format("b") + "func.return %a, %b : f32, f32")
    assert text.count("cute.load") == 1
    store = '"cute.store"(%a, %p, %i) : (f32, !cute.ptr<f32, "gmem", 4>, i32) -> ()\n'
    text = optimized(LOAD.format("a") + store + LOAD.format("b") + "func.return %a, %b : f32, f32")
    assert (text.count("cute.load"), text.count("cute.store")) == (2, 1)


def test_pure_operations_are_merged_and_allocations_are_not() -> None:
    index = '%{} = "cute.thread_idx"() {{dim = 0 : i32}} : () -> i32\n'
    alloc = '%{} = "cute.alloc_rmem"() {{count = 1 : i64}} : () -> !cute.ptr<f32, "rmem", 4>\n'
    loads = (
        '%a = "cute.load"(%m, %x) : (!cute.ptr<f32, "rmem", 4>, i32) -> f32\n'
        '%b = "cute.load"(%n, %y) : (!cute.ptr<f32, "rmem", 4>, i32) -> f32\n'
    )
    body = index.format("x") + index.format("y") + alloc.format("m") + alloc.format("n") + loads
    text = optimized(body + "func.return %a, %b : f32, f32")
    assert (text.count("cute.thread_idx"), text.count("cute.alloc_rmem"), text.count("cute.load")) == (1, 2, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('%x = "cute.thread_idx"() {dim = 0 : i32} : () -> i64', "expected 'i32' but got 'i64'"),
        ('%x = "cute.thread_idx"() : () -> i32', 'attribute "dim" is expected'),
        ('%x = "cute.no_such_op"() : () -> i32', "unregistered"),
    ],
)
def test_malformed_operations_are_refused(text: str, words: str) -> None:
    cute.load_dialect()
    with context(), pytest.raises(ir.MLIRError) as caught:
        ir.Module.parse(f"func.func @f() {{ {text}\n func.return }}")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("format_", "want"),
    [("%d %i", ["i32", "i32"]), ("%lld%lu", ["i64", "i64"]), ("%%%f", ["f64"]), ("%-08.3e|%5x|%p|%c", ["f64", "i32", "i64", "i32"]), ("none", [])],
)  # fmt: skip
def test_conversions_of_formats(format_: str, want: list[str]) -> None:
    assert cute.conversions(format_) == want
