"""Native functions: called from Python they are compiled by themselves."""

# pyright: reportReturnType=false
from __future__ import annotations

import ctypes

import pytest

from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeError, DSLUserCodeTypeError
from kiln.native import (
    Array,
    Fn,
    Library,
    Ptr,
    Unit,
    address,
    atomic,
    atomic_load,
    atomic_store,
    compare_exchange,
    extern,
    f64,
    i8,
    i32,
    i64,
    inline,
    leading_zeros,
    local,
    lowest_bit,
    native,
    popcount,
    ref,
    size_of,
    struct,
    text,
    u8,
    u32,
    u64,
    volatile,
)
from kiln.targets.host import jit  # noqa: F401 - it loads native functions
from kiln.targets.host.lower import lower_library


@struct
class Node:
    value: i32
    next: Ptr[Node]


@struct
class Cell:
    small: u8
    sum: i64
    index: Array[i32, 3]
    nodes: Array[Node, 2]
    compute: Fn[[i32, i32], i32]
    later: Ptr[Later]


@struct
class Later:
    ratio: f64


@native
def total(node: Ptr[Node]) -> i64:
    result = i64(0)
    while node != None:
        result += node.value
        node = node.next
    return result


def test_structures_are_shared_with_python():
    last = Node(3, None)
    first = Node(4, ctypes.addressof(last))
    assert total(first) == 7
    assert total(None) == 0
    assert size_of(Cell) == ctypes.sizeof(Cell) == 8 + 8 + 16 + 32 + 8 + 8


@native
def fill(cell: Ptr[Cell], start: i32) -> i32:
    cell.small = 255
    for i in range(3):
        cell.index[i] = start + i
    for i in range(2):
        node = cell.nodes[i]
        node.value = i32(10) * i
        node.next = None
    cell.nodes[0].next = ref(cell.nodes)[1]
    cell.sum += cell.index[2]
    cell.later.ratio = cell.later.ratio * 2.0
    return cell.nodes[0].next.value


def test_fields_arrays_and_places():
    later = Later(1.5)
    cell = Cell(sum=100, later=ctypes.addressof(later))
    assert fill(cell, -7) == 10
    assert list(cell.index) == [-7, -6, -5]
    assert (cell.small, cell.sum, later.ratio) == (255, 95, 3.0)
    assert cell.nodes[0].next == ctypes.addressof(cell) + Cell.nodes.offset + 16


@native
def find(values: Ptr[i32], count: i32, wanted: i32) -> i32:
    for i in range(count):
        if values[i] < 0:
            continue
        if values[i] == wanted:
            return i
        if values[i] == 99:
            break
    return -1


def test_early_returns_have_the_declared_type():
    values = (ctypes.c_int32 * 5)(1, -1, 5, 99, 7)
    assert [find(values, 5, w) for w in (1, -1, 5, 7)] == [0, -1, 2, -1]


@native
def pick(node: Ptr[Node], wanted: i32) -> Ptr[Node]:
    if wanted < 0:
        return None
    chosen = Ptr[Node](None)
    while node != None:
        if node.value == wanted:
            chosen = node
            break
        node = node.next
    return chosen


def test_pointers_are_chosen_and_returned():
    last = Node(3, None)
    first = Node(4, ctypes.addressof(last))
    assert pick(first, 3) == ctypes.addressof(last)
    assert pick(first, 4) == ctypes.addressof(first)
    assert pick(first, 5) is None
    assert pick(first, -1) is None


@native
def fibonacci(n: u32) -> u64:
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@native
def plus(a: i32, b: i32) -> i32:
    return a + b


@native
def times(a: i32, b: i32) -> i32:
    return a * b


@native
def apply(cell: Ptr[Cell], multiplies: bool, a: i32, b: i32) -> i32:
    if multiplies:
        cell.compute = times
    else:
        cell.compute = plus
    return cell.compute(a, b)


@native
def is_small(x: i32) -> bool:
    return x < 10


@native
def grid(table: Ptr[Array[u32, 3]], test: Fn[[i32], bool], row: i32) -> u32:
    chosen = table[0]
    if test(row):
        chosen = table[row]
    return chosen[2] + row_sum(ref(table)[row])


@native
def row_sum(row: Ptr[Array[u32, 3]]) -> u32:
    return row[0][0] + row[0][1]


@native
def use_grid(table: Ptr[Array[u32, 3]], row: i32) -> u32:
    return grid(table, is_small, row)


def test_arrays_of_arrays_and_functions_of_truths():
    table = (ctypes.c_uint32 * 3 * 12)(*[(n, 10 * n, 100 * n) for n in range(12)])
    assert use_grid(table, 3) == 300 + 33
    assert use_grid(table, 11) == 0 + 121


@native
def shifted(p: Ptr, bytes_: i64) -> u64:
    return address(Ptr[u32](p + bytes_) + 2)


def test_calls():
    assert fibonacci(20) == 6765
    cell = Cell()
    assert apply(cell, True, 6, 7) == 42
    assert apply(cell, False, 6, 7) == 13
    assert shifted(1000, -100) == 908


@native
def wraps(x: i32, shift: i32) -> i64:
    big = i32(1) << shift
    return i64(big) + i64(x * x)


@native
def meets(a: u32, b: i32, c: i8) -> i32:
    result = i32(0)
    if a > b:  # exact, unlike C
        result += 1
    if b < c:
        result += 2
    if a - 1 > a:  # wraps
        result += 4
    return result


def test_numbers_wrap_and_know_nothing_else():
    assert wraps(65535, 31) == -(1 << 31) + (65535 * 65535 + (1 << 31)) % (1 << 32) - (1 << 31)
    assert wraps(0, 32) == 0
    assert meets(1, -1, -128) == 1
    assert meets(0, -1, 0) == 7


@native
def swap(p: Ptr[u32], q: Ptr[u64]) -> u64:
    before = atomic("xchg", p, 7, "acquire")
    atomic("add", ref(p)[1], 5)
    lowest = atomic("min", ref(p)[1], u32(1) << 31)
    atomic_store(ref(q)[1], atomic_load(q, "acquire") + volatile(p), "release")
    old, done = compare_exchange(q, 10, 20, "acq_rel")
    again, failed = compare_exchange(q, 10, 30)
    result = u64(before) + lowest + old + again
    if done and not failed:
        result += 1000
    return result


def test_atomics():
    p, q = (ctypes.c_uint32 * 2)(3, 4), (ctypes.c_uint64 * 2)(10, 0)
    assert swap(p, q) == 3 + 9 + 10 + 20 + 1000
    assert (list(p), list(q)) == ([7, 9], [20, 17])


@extern
def strlen(text: Ptr) -> u64: ...


@extern
def memcpy(target: Ptr, source: Ptr, bytes_: u64) -> Ptr: ...


@native
def bits(x: u32) -> u64:
    copy = local(u32, 2)
    copy[1] = x
    memcpy(copy, ref(copy)[1], size_of(u32))
    x = copy[0]
    return u64(popcount(x)) << 32 | lowest_bit(x) << 16 | leading_zeros(x) | strlen(text("seven c")) << 48


def test_c_functions_local_memory_texts_and_bits():
    assert bits(0b1011000) == 7 << 48 | 3 << 32 | 3 << 16 | 25


@inline
def clamp(x, low: int, high: int) -> i32:
    if x < low:
        return low
    return x if x < high else high


@inline
def divided(a, b):
    return a // b, a % b


@native
def use_inline(x: i32) -> i32:
    quotient, rest = divided(clamp(x, -10, 100), 7)
    for weight in (1, 10):
        rest = rest * weight
    return quotient * 1000 + rest


def test_inline_functions_take_python_values():
    assert use_inline(50) == 7 * 1000 + 10
    assert use_inline(-99) == (-10 // 7) * 1000 + 10 * (-10 % 7)


# -- libraries -------------------------------------------------------------------------------------------------------

counting = Library("counting", prefix="test_")
count = counting.variable("count", i64, 40)
table = counting.variable("table", Array[u32, 5])
using = Library("using", prefix="test_")


@counting.export
def advance(by: i64) -> i64:
    count.value += by
    table.place[1] = 5
    return count.value + double(1)


@native
def double(x: i64) -> i64:
    return x * 2


@using.export
def twice(by: i64) -> i64:
    advance(by)
    return advance(by) + double(by) + count.value


def test_libraries_export_and_import():
    assert counting.exports == ("test_advance", "test_count", "test_table")
    listing = str(using.build())
    assert "func.func private @test_advance(i64) -> i64" in listing
    assert listing.count("func.func private @native.double(%") == 1
    assert "llvm.mlir.global external @test_count() " in listing
    first = str(counting.build())
    assert "@test_count(40 : i64)" in first
    assert "@test_table(#llvm.zero)" in first
    assert "!llvm.array<3 x i64>" in first
    assert first.count("func.func private @native.double(%") == 1


def test_functions_are_added_to_the_module_of_others():
    from kiln.mlir import context, ir

    with context(), ir.Location.unknown():
        module = ir.Module.parse("func.func private @test_advance(i64) -> i64")
    counting.add_to(module)
    unit = Unit(module)
    assert unit.add(plus) == unit.add(plus) == "native.plus"
    assert module.operation.verify()
    listing = str(module)
    assert listing.count("@test_advance") == 1
    assert 'attributes {llvm.passthrough = ["alwaysinline"]}' in listing
    lowered = lower_library(module, "test", counting.exports)
    assert "alwaysinline" in lowered
    assert "define i64 @test_advance(i64" in lowered


# -- errors ----------------------------------------------------------------------------------------------------------


@native
def no_field(node: Ptr[Node]) -> i32:
    return node.valeu


@native
def narrow(node: Ptr[Node], x: i64) -> None:
    node.value = x


@native
def no_result(x: i32) -> i32:
    if x > 0:
        return 1


@native
def other_result(node: Ptr[Node]) -> Ptr[Cell]:
    return node


@native
def mixed(node: Ptr[Node], cell: Ptr[Cell], x: i32) -> i32:
    p = cell
    if x > 0:
        p = node
    return p.value


@native
def truth(node: Ptr[Node]) -> i32:
    if node:
        return 1
    return 0


@native
def whole(cell: Ptr[Cell]) -> None:
    cell.index = 0


@native
def too_large(x: i32) -> u8:
    return 256


@native
def wrong_call(cell: Ptr[Cell]) -> i64:
    return total(cell)


@native
def wrong_function(cell: Ptr[Cell]) -> None:
    cell.compute = total


@native
def wrong_order(p: Ptr[u32]) -> None:
    atomic_store(p, 1, "acquire")


@native
def untyped(x) -> i32:
    return 1


@pytest.mark.parametrize(
    ("function", "line", "words"),
    [
        (no_field, "return node.valeu", ["Node has no field 'valeu'", "value, next"]),
        (narrow, "node.value = x", ["the field 'value' is Int64", "Int32(x) converts"]),
        (no_result, "", ["nothing on others"]),
        (other_result, "return node", ["Ptr[Node]", "has to be Ptr[Cell]"]),
        (mixed, "if x > 0:", ["Ptr[Node]", "Ptr[Cell]", "different types"]),
        (truth, "if node:", ["no truth value", "p != None"]),
        (whole, "cell.index = 0", ["not assigned as a whole"]),
        (too_large, "return 256", ["256, which is no Uint8"]),
        (wrong_call, "return total(cell)", ["'node' of total is Ptr[Cell]"]),
        (wrong_function, "cell.compute = total", ["Fn[[Ptr[Node]], Int64]"]),
        (wrong_order, 'atomic_store(p, 1, "acquire")', ["release"]),
        (untyped, "", ["the type of x"]),
    ],
)
def test_errors_show_the_line_in_the_native_file(function, line, words):
    with pytest.raises(DSLUserCodeError) as caught:
        Unit.new().add(function)
    shown = str(caught.value)
    assert line in shown
    assert caught.value.span.filename == __file__
    for word in words:
        assert word in shown


def test_native_functions_are_not_for_kernels():
    import kiln.cute as cute

    @cute.jit
    def program(x: cute.Int32):
        plus(x, x)

    with pytest.raises(DSLRuntimeError, match="program of another language"):
        program(3)


def test_a_field_has_a_place_in_memory():
    with pytest.raises(DSLUserCodeTypeError, match="a truth value is an i32"):

        @struct
        class Wrong:
            flag: bool


@native
def identity(node: Ptr[Node]) -> i32:
    if node is not None:
        return 1
    return 0


def test_identity_of_pointers_is_refused():
    with pytest.raises(DSLUserCodeError, match="write `p == None`"):
        Unit.new().add(identity)


def test_a_failure_leaves_nothing_behind():
    for _ in range(2):
        with pytest.raises(DSLUserCodeTypeError, match="no field"):
            no_field(None)
    assert plus(1, 2) == 3
