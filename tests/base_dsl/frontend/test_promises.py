"""Annotations are promises: an argument of another kind is refused, wherever a function or kernel is called."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Tuple, TypeVar, Union  # noqa: UP035

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Boolean, Constexpr, Float16, Float32, Int32, Int64, Numeric, Uint64
from kiln.base_dsl import promises
from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError

ARRAY = np.zeros(4, np.float32)
LAYOUT = cute.make_layout((2, 3))
TENSOR = cute.runtime.from_dlpack(ARRAY)
POINTER = TENSOR.iterator
STREAM = cute.runtime.make_fake_stream()


class Thing:
    pass


def function(x):
    return x


VALUES: dict[str, list[Any]] = {
    "number": [3, True, 2.5],
    "text": ["ab"],
    "None": [None],
    "sequence": [(1, 2), [1, 2]],
    "dict": [{"a": 1}],
    "type": [Thing],
    "function": [function, len],
    "tensor": [ARRAY, TENSOR],
    "pointer": [POINTER],
    "layout": [LAYOUT],
    "stream": [STREAM],
    "": [Thing()],
}

ANNOTATIONS: list[tuple[Any, set[str] | None]] = [
    *((t, {"number"}) for t in (Int32, Float16, Boolean, Int64, Numeric, int, float, bool)),
    (str, {"text"}),
    (tuple, {"sequence"}),
    (Tuple, {"sequence"}),  # noqa: UP006
    (tuple[int, int], {"sequence"}),
    (list[int], {"sequence"}),
    (dict, {"dict"}),
    (type, {"type"}),
    (type[Numeric], {"type"}),
    (Callable, {"function", "type"}),
    (Callable[[int], int], {"function", "type"}),
    (cute.Tensor, {"tensor"}),
    (cute.Pointer, {"pointer"}),
    (cute.Layout, {"layout", "sequence"}),
    (cute.ComposedLayout, {"layout"}),
    (cute.Shape, {"number", "sequence", "layout", "None"}),
    (cute.Tile, {"number", "sequence", "layout", "None"}),
    (cute.TiledMma, {"tensor"}),
    (cute.TiledCopy, {"tensor"}),
    (cute.CopyAtom, {"tensor"}),
    (Constexpr[int], {"number"}),
    (Constexpr[str], {"text"}),
    (Constexpr[Callable], {"function", "type"}),
    (Annotated[Int32, "rows"], {"number"}),
    (Union[Int32, str], {"number", "text"}),  # noqa: UP007
    (Optional[cute.Tensor], {"tensor", "None"}),  # noqa: UP045
    (Int32 | None, {"number", "None"}),
    (Optional[Float32 | cute.Tensor], {"number", "tensor", "pointer", "None"}),  # noqa: UP045
    (Union[cute.Tensor, cute.Layout], {"tensor", "layout", "sequence"}),  # noqa: UP007
    (NewType("Rows", int), {"number"}),
    (TypeVar("Bound", bound=int), {"number"}),
    (TypeVar("OneOf", Int32, str), {"number", "text"}),
    (Literal["a", 1], {"number", "text"}),
    (TypeVar("Free"), None),
    (Constexpr, None),
    (Any, None),
    (object, None),
    (Thing, None),
    (Union[Int32, Thing], None),  # noqa: UP007
    (cute.TensorSSA, None),
]


@pytest.mark.parametrize(("annotation", "allowed"), ANNOTATIONS, ids=[promises.name_of(a) for a, _ in ANNOTATIONS])
def test_what_annotations_allow(annotation, allowed):
    dsl = Int32_function.dsl
    for kind, values in VALUES.items():
        for value in values:
            assert dsl.kind_of(value) == kind
            excluded = allowed is not None and kind != "" and kind not in allowed
            assert dsl.breaks(value, annotation) or not excluded
    assert dsl.promised(annotation) == allowed


@cute.jit
def Int32_function(a: Int32):
    return a * 2


@cute.jit
def tensor_function(x: cute.Tensor):
    return cute.size(x)


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Constexpr[int], [3, True], [2.5, 1.0]),
        (tuple[int, int], [(1, 2)], [(1,), (1, 2, 3), ()]),
        (Constexpr[Tuple[int, ...]], [(1,), (1, 2, 3)], []),  # noqa: UP006
        (Constexpr[Literal["row", "col"]], ["row", "col"], ["rows", ""]),
        (Literal[1, 2], [1, 2], [3, True]),
        (Union[Constexpr[Literal["a"]], tuple[int]], ["a", (1,)], ["b", (1, 2)]),  # noqa: UP007
        (Optional[Constexpr[int]], [None, 3], [2.5]),
    ],
    ids=str,
)
def test_what_annotations_say_of_values(annotation, good, bad):
    def f(a: Any) -> Int32:
        return Int32(1)

    f.__annotations__["a"] = annotation
    f = cute.jit(f)
    for value in good + good:
        assert f(value) == 1
    for value in bad + bad:
        with pytest.raises(DSLUserCodeTypeError, match="argument 'a' of f takes .* and got"):
            f(value)

    @cute.jit
    def inlined(wrong: Constexpr):
        return f(wrong)

    for value in bad:
        with pytest.raises(DSLUserCodeTypeError, match="argument 'a' of f takes .* and got"):
            inlined(value)


@pytest.mark.parametrize("value", ["ab", None, ARRAY, (1, 2)], ids=str)
def test_a_call_from_python(value):
    assert Int32_function(3) == 6
    for _ in range(2):  # the second time by what was learned of the first
        with pytest.raises(DSLUserCodeTypeError, match="argument 'a' of Int32_function takes Int32 and got"):
            Int32_function(value)
    with pytest.raises(DSLUserCodeTypeError, match="takes Int32 and got"):
        Int32_function(a=value)
    with pytest.raises(DSLUserCodeTypeError, match="takes Int32 and got"):
        cute.compile(Int32_function, value)
    with pytest.raises(DSLUserCodeTypeError, match="takes Int32 and got"):
        cute.compile(Int32_function, 3)(value)


class Scaled(NamedTuple):
    x: cute.Tensor
    by: Float16
    times: Constexpr[int] = 1


def test_fields_of_named_tuples_have_the_types_they_are_annotated_with():
    @cute.jit
    def scaled(s: Scaled):
        return Float32(s.by) * (s.times if type(s.by) is Float16 and type(s.times) is int else -1)

    assert [scaled(Scaled(ARRAY, 2, n)) for n in (3, 5, 3)] == [6, 10, 6]
    with pytest.raises(DSLUserCodeTypeError, match=r"argument 's.by' takes Float16 and got the str"):
        scaled(Scaled(ARRAY, "a"))
    with pytest.raises(DSLUserCodeTypeError, match=r"argument 's.x' takes Tensor and got the int"):
        scaled(Scaled(1, 2))


def test_an_argument_that_may_be_left_out_says_so():
    @cute.jit
    def by_default(x: cute.Tensor = None):
        return -1 if x is None else cute.size(x)

    @cute.jit
    def by_annotation(x: Optional[cute.Tensor]):  # noqa: UP045
        return -1 if x is None else cute.size(x)

    @cute.jit
    def inlined(x: Constexpr, n: Int32):
        return by_default(x) + by_annotation(x) + by_default() + n

    assert by_default() == by_default(None) == by_annotation(None) == -1
    assert by_default(ARRAY) == by_annotation(ARRAY) == 4
    assert inlined(None, 0) == -3
    with pytest.raises(DSLUserCodeTypeError, match="'x' of tensor_function takes Tensor and got None") as refused:
        tensor_function(None)
    assert "x: Optional[Tensor], or x: Tensor = None" in refused.value.hint


def test_the_type_of_an_optional_number_is_chosen_too():
    @cute.jit
    def half(x: Optional[Float32] = None, y: Float32 | None = None):  # noqa: UP045
        return x / 2, y / 2  # type: ignore[operator]

    assert half(3, 5) == (1.5, 2.5)


class Factors(NamedTuple):
    alpha: Optional[Float32 | cute.Tensor] = None  # noqa: UP045
    beta: Optional[Float32 | cute.Tensor] = None  # noqa: UP045


@cute.jit
def scale_of(args: Factors):
    total = Float32(0)
    for scale in args:
        if isinstance(scale, cute.Pointer):
            total += cute.make_tensor(scale, cute.make_layout(1))[0]
        elif isinstance(scale, cute.Tensor):
            total += scale[0]
        elif scale is not None:
            total += scale
    return total


def test_a_number_or_where_it_lies():
    array = np.array([2.5], np.float32)
    tensor = cute.runtime.from_dlpack(array)
    assert scale_of(Factors()) == 0
    for scale in (2.5, Float32(2.5), array, tensor, tensor.iterator):
        assert scale_of(Factors(scale)) == 2.5
        assert scale_of(Factors(1.0, scale)) == 3.5
        assert cute.compile(scale_of, Factors(scale, 4.0))(Factors(scale, 4.0)) == 6.5
    with pytest.raises(DSLUserCodeTypeError, match="'args.alpha' takes .* and got the str 'a'"):
        scale_of(Factors("a"))  # type: ignore[arg-type]


def test_a_call_in_a_trace():
    @cute.jit
    def outer(x: Constexpr):
        return Int32_function(x)

    @cute.jit
    def named(x: Constexpr):
        return tensor_function(x=x)

    assert outer(4) == 8
    with pytest.raises(DSLUserCodeTypeError, match="argument 'a' of Int32_function takes Int32 and got the str 'ab'"):
        outer("ab")
    with pytest.raises(DSLUserCodeTypeError, match="argument 'x' of tensor_function takes Tensor and got the str 'ab'"):
        named("ab")


def test_a_number_stands_for_an_object_that_is_left_out():
    """In a trace, as None does: CuTe DSL takes both whatever the annotation says."""

    @cute.jit
    def scaled(x: cute.Tensor, w: cute.Tensor, by: Scaled):
        return (x[1] if isinstance(w, (int, float)) else x[1] * w[1]) + (0 if by == 0 else by.times)

    @cute.jit
    def outer(x: cute.Tensor, w: Constexpr, by: Constexpr):
        return scaled(x, w, by)

    assert [outer(ARRAY, w, 0) for w in (0, 1.5)] == [ARRAY[1]] * 2
    assert outer(ARRAY, 0, Scaled(ARRAY, 2, 7)) == ARRAY[1] + 7
    with pytest.raises(DSLUserCodeTypeError, match="'w' of scaled takes Tensor and got the str"):
        outer(ARRAY, "no", 0)
    with pytest.raises(DSLUserCodeTypeError, match="'x' of scaled takes Tensor and got the int 3"):
        scaled(3, 0, 0)  # type: ignore[arg-type]


def test_several_stand_for_one_in_a_trace():
    """A list of tensors where a tensor is said, as CuTe DSL takes it; a list of anything else is refused."""

    @cute.jit
    def total(parts: cute.Tensor):
        return parts[0][1] + parts[1][1]

    @cute.jit
    def outer(x: cute.Tensor, case: Constexpr):
        return total([x, x] if case == 0 else (x, 1.5) if case == 1 else ["a", x])  # type: ignore[arg-type]

    assert outer(ARRAY, 0) == 2 * ARRAY[1]
    for case in (1, 2):
        with pytest.raises(DSLUserCodeTypeError, match="'parts' of total takes Tensor and got a (tuple|list) of 2"):
            outer(ARRAY, case)
    with pytest.raises(DSLUserCodeTypeError, match="'parts' of total takes Tensor and got a list of 2"):
        total([ARRAY, ARRAY])  # type: ignore[arg-type]


def test_a_pointer_stands_for_what_it_points_to():
    @cute.jit
    def loaded(at: Int64):
        return cute.make_tensor(at, cute.make_layout(2))[1]

    @cute.jit
    def added(at: cute.Tensor, n: int):
        return cute.make_tensor(at, cute.make_layout(2))[1] + n

    @cute.jit
    def outer(x: cute.Tensor):
        return loaded(x.iterator) + added(x.iterator, 2)

    @cute.jit
    def wrong(x: cute.Tensor):
        return added(x, x.iterator)  # type: ignore[arg-type]

    assert outer(ARRAY) == 2 * ARRAY[1] + 2
    with pytest.raises(DSLUserCodeTypeError, match="'n' of added takes int and got a Pointer"):
        wrong(ARRAY)


def test_an_array_stands_for_a_pointer():
    @cute.jit
    def loaded(at: cute.Pointer):
        return at[1]

    @cute.jit
    def outer(x: cute.Tensor):
        return loaded(kiln.make_array_view(x))

    assert outer(ARRAY) == ARRAY[1]
    with pytest.raises(DSLUserCodeTypeError, match="takes Pointer and got"):
        cute.jit(lambda x: loaded(x))(ARRAY)


def test_elements_in_a_call_in_a_trace():
    @cute.jit
    def inner(pairs: list[tuple[Int32, Optional[Int32]]], rest: tuple[Int32, ...] = ()):  # noqa: UP045
        return pairs[0][0] + len(rest)

    @cute.jit
    def outer(pairs: Constexpr, rest: Constexpr, x: Int32):
        return inner([*pairs, (x, None)], rest)

    assert outer([(4, 1)], (1, 2), 3) == 6
    assert outer([], (), 3) == 3
    for pairs, rest, wrong in (
        ([(4, "a")], (), r"'pairs\[0\]\[1\]' of inner takes .* and got the str 'a'"),
        ([(4, 1), 5], (), r"'pairs\[1\]' of inner takes tuple.* and got the int 5"),
        ([(4, 1, 2)], (), r"'pairs\[0\]' of inner takes tuple.* and got a tuple of 3"),
        ([(None, 1)], (), r"'pairs\[0\]\[0\]' of inner takes Int32 and got None"),
        ([(4, 1)], (1, (2,)), r"'rest\[1\]' of inner takes Int32 and got a tuple of 1"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=wrong):
            outer(pairs, rest, 3)


def test_arguments_of_kernels_and_parts_of_arguments():
    @dataclasses.dataclass
    class Pair:
        x: Int32
        y: Float32

    @cute.kernel
    def kernel(x: cute.Tensor, n: Int32):
        x[0] = Float32(n)

    @cute.jit
    def launch(x: cute.Tensor, n: Constexpr):
        kernel(x, n).launch(grid=1, block=1)

    @cute.kernel
    def constexpr_kernel(x: cute.Tensor, n: Constexpr):
        x[0] = Float32(n)

    @cute.jit
    def launch_constexpr(x: cute.Tensor, n: Int32):
        constexpr_kernel(x, n).launch(grid=1, block=1)

    @cute.jit
    def parts(pair: Pair, both: tuple[Int32, Float32]):
        return pair.x + both[0]

    launch(ARRAY, 3)
    with pytest.raises(DSLUserCodeTypeError, match="argument 'n' of kernel takes Int32 and got the str 'ab'"):
        launch(ARRAY, "ab")
    with pytest.raises(DSLUserCodeTypeError, match="'n' is Constexpr.* only known when the program runs"):
        cute.compile(launch_constexpr, ARRAY, 3)
    assert parts(Pair(1, 2), (3, 4)) == 4
    with pytest.raises(DSLUserCodeTypeError, match="argument 'pair.y' takes Float32 and got the str"):
        parts(Pair(1, "ab"), (3, 4))  # type: ignore[arg-type]
    with pytest.raises(DSLUserCodeTypeError, match=r"argument 'both\[1\]' takes Float32 and got None"):
        parts(Pair(1, 2), (3, None))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**200])
def test_an_int_beyond_64_bits(value):
    @cute.jit
    def plain(x):
        return x

    @cute.jit
    def annotated(x: int):
        return x

    @cute.jit
    def typed(x: Uint64):
        return x

    for function in (plain, annotated):
        with pytest.raises(DSLUserCodeTypeError, match="argument 'x' is .*passed as Int32 or Int64") as refused:
            function(value)
        assert "Uint64" in refused.value.hint
    with pytest.raises(DSLUserCodeTypeError, match=r"argument 'x\[0\]' is "):
        plain([value])
    assert typed(2**63) == 2**63
    assert plain(2**62) == 2**62


# --- kernels that nobody launches ------------------------------------------------------------------------------------


@cute.kernel
def add_one(x: cute.Tensor):
    x[0] = x[0] + 1


@cute.jit
def forgets(x: cute.Tensor):
    add_one(x)


@cute.jit
def forgets_in_a_branch(x: cute.Tensor, n: Int32):
    if n > 0:
        add_one(x)


@cute.jit
def forgets_in_a_call(x: cute.Tensor):
    _calls(x)


def _calls(x):
    add_one(x)


@cute.jit
def decides(x: cute.Tensor, launches: Constexpr):
    prepared = add_one(x)
    if launches:
        prepared.launch(grid=1, block=1)
        prepared.launch(grid=1, block=1)


@pytest.mark.parametrize("function", [forgets, lambda x: forgets_in_a_branch(x, 1), forgets_in_a_call])
def test_a_call_of_a_kernel_without_a_launch_is_refused(function):
    with pytest.raises(DSLRuntimeError, match="the kernel 'add_one' is called and not launched") as refused:
        function(np.zeros(1, np.float32))
    assert "add_one(...).launch(" in refused.value.hint
    assert refused.value.span is not None
    assert refused.value.span.filename == __file__


def test_a_launch_may_be_left_to_the_program(caplog):
    x = np.zeros(1, np.float32)
    decides(x, True)
    assert x[0] == 2
    assert not caplog.records
    decides(x, False)
    assert "the kernel 'add_one' is called and never launched" in caplog.text
    assert x[0] == 2


def test_a_launch_may_outlive_the_language(monkeypatch):
    kept = []

    @cute.jit
    def keeps(x: cute.Tensor):
        kept.append(add_one(x))

    keeps(np.zeros(1, np.float32))
    monkeypatch.setattr(sys.modules[type(kept[0]).__module__], "tracing", None)  # as when the interpreter ends
    kept[0].__del__()


def test_a_failing_trace_says_why_it_fails():
    @cute.jit
    def fails(x: cute.Tensor):
        add_one(x)
        raise ValueError("the reason")

    with pytest.raises(ValueError, match="the reason"):
        fails(ARRAY)
    assert kiln.cute is cute


def test_a_mode_of_a_shape_where_the_annotation_names_a_number():
    """Public programs pass ((h, r), b) where they annotate Tuple[Int32, Int32], and pointers to an Int32 as Int32."""

    @cute.jit
    def inner(shape: tuple[Int32, tuple[Int32, Int32]], where: Int32):
        return shape[1][0][1] + cute.size(shape)

    @cute.jit
    def outer(x: Int32):
        pointer = cute.make_rmem_tensor(1, Int32).iterator
        return inner((x, ((2, 3), 4)), pointer)

    assert outer(5) == 3 + 5 * 24
