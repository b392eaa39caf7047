"""Calls of library functions that are recorded and repeated: what tells them apart, and that they do what a first call does."""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, kernels
from kiln.base_dsl import target as targets
from kiln.base_dsl.guards import IS_TRUE, Guard
from kiln.interop.arguments import loading
from kiln.interop.arguments import program as call_program
from kiln.kernels.dispatch import arrays, recorder

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(7)
ENOUGH = 6
"""Calls after which native code has taken over."""


@pytest.fixture(autouse=True)
def _cpu():
    """The process's target, for native code does not look into `with kiln.target(...)`."""
    before = targets._process_choice
    targets._process_choice = "cpu"
    yield
    targets._process_choice = before


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def tensor(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(normal(*shape)).to(dtype)


def by_python(function: Any, *given: Any, **options: Any) -> Any:
    """What a function gives without any of the machinery."""
    return function._function(*given, **options)


def programs(function: Any) -> int:
    return len(function._programs)


def python_calls(function: Any) -> int:
    """Calls that Python repeated."""
    return sum(p.calls for p in function._programs.values() if p is not None)


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert type(got) is tuple and len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            same(g, w)
    elif wanted is None:
        assert got is None
    else:
        assert type(got) is type(wanted) and got.dtype == wanted.dtype and tuple(got.shape) == tuple(wanted.shape)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def _shifted(a: Any, b: Any) -> Any:
    return a * 2.0 + b


CLASSES = torch.tensor([1, 0, 3, 2])
IN_PARTS = kernels.Sm80GemmConfig((64, 64, 8), (2, 2), 2, 2)
WARP_GROUPS = kernels.Sm90AttentionConfig(1, 16)
CALLS: dict[str, tuple[Any, Any]] = {
    "softmax": (kernels.softmax, lambda: ((tensor(4, 8),), {})),
    "softmax into": (kernels.softmax, lambda: ((tensor(4, 8),), {"out": torch.empty(4, 8)})),
    "softmax of columns": (kernels.softmax, lambda: ((tensor(8, 4).T,), {})),
    "softmax of numpy": (kernels.softmax, lambda: ((normal(4, 8),), {})),
    "softmax of columns of numpy": (kernels.softmax, lambda: ((normal(8, 4).T,), {"out": np.empty((8, 4), np.float32).T})),
    "rms_norm": (kernels.rms_norm, lambda: ((tensor(4, 8), tensor(8)), {"eps": 1e-5})),
    "layer_norm": (kernels.layer_norm, lambda: ((tensor(4, 8), tensor(8)), {"bias": tensor(8)})),
    "layer_norm without": (kernels.layer_norm, lambda: ((tensor(4, 8), None, tensor(8)), {})),
    "softmax_backward": (kernels.softmax_backward, lambda: ((tensor(4, 8), tensor(4, 8)), {})),
    "rms_norm_backward": (kernels.rms_norm_backward, lambda: ((tensor(4, 8), tensor(4, 8), tensor(8)), {})),
    "layer_norm_backward": (kernels.layer_norm_backward, lambda: ((tensor(4, 8), tensor(4, 8)), {"bias": True})),
    "sum": (kernels.sum, lambda: ((tensor(4, 8), 1), {})),
    "mean of all": (kernels.mean, lambda: ((normal(4, 8),), {"keepdims": True})),
    "max over a middle axis": (kernels.max, lambda: ((tensor(2, 3, 4, 5)[:, ::2], (0, 2)), {})),
    "argmax into a row": (kernels.argmax, lambda: ((tensor(4, 8), 0), {"out": torch.zeros(16, dtype=torch.int64)[::2]})),
    "elementwise": (kernels.elementwise, lambda: ((lambda a: a + 1.5, tensor(4, 8)), {})),
    "elementwise of two": (kernels.elementwise, lambda: ((_shifted, tensor(4, 8), normal(8)), {})),
    "elementwise with a number": (kernels.elementwise, lambda: ((_shifted, tensor(4, 8), 3), {})),
    "cross_entropy": (kernels.cross_entropy, lambda: ((tensor(4, 8), CLASSES), {})),
    "cross_entropy, all of it": (kernels.cross_entropy, lambda: ((tensor(4, 8), CLASSES), {"reduction": "none", "return_lse": True})),
    "cross_entropy_backward": (kernels.cross_entropy_backward, lambda: ((1.0, tensor(4, 8), CLASSES), {"label_smoothing": 0.1})),
    "gemm": (kernels.gemm, lambda: ((tensor(8, 16), tensor(16, 8)), {})),
    "gemm with all": (
        kernels.gemm,
        lambda: (
            (tensor(8, 16), tensor(16, 8)),
            {"c": tensor(8, 8), "bias": tensor(8), "activation": "relu", "alpha": 0.5, "extras": [tensor(8, 1)],
             "epilogue": lambda value, more: value * more},
        ),
    ),
    "gemm into columns": (kernels.gemm, lambda: ((tensor(8, 16), tensor(16, 8)), {"out": torch.empty(8, 8).T})),
    "gemm of a strided row": (kernels.gemm, lambda: ((tensor(1, 32)[:, ::2], tensor(16, 8)), {})),
    "gemm in parts": (
        kernels.gemm,
        lambda: ((tensor(8, 64), tensor(64, 8)), {"config": IN_PARTS, "bias": tensor(8)}),
    ),
    "flash_attention": (
        kernels.flash_attention,
        lambda: (tuple(tensor(1, 16, 1, 8, dtype=torch.float16) for _ in range(3)), {"causal": True, "return_lse": True}),
    ),
    "flash_attention by warp groups": (
        kernels.flash_attention,
        lambda: (
            tuple(tensor(1, 70, 1, 16, dtype=torch.float16) for _ in range(3)),
            {"causal": True, "return_lse": True, "config": WARP_GROUPS},
        ),
    ),
}  # fmt: skip


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_does_what_the_first_did_on_other_arrays(name):
    function, make = CALLS[name]
    for number in range(ENOUGH):
        given, options = make()
        wanted = by_python(function, *make_alike(given), **make_alike(options))
        same(function(*given, **options), wanted)
        if "out" in options:
            same(options["out"], wanted)
        if number == ENOUGH - 2:
            before = python_calls(function)
    assert loading.engine() is None or python_calls(function) == before, "Python took the last call"


def make_alike(value: Any) -> Any:
    """A copy of arguments whose arrays lie alike."""
    if isinstance(value, dict):
        return {name: make_alike(v) for name, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(make_alike, value))
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        made.copy_(value)
        return made
    return value.copy(order="K") if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", ["softmax into", "rms_norm_backward", "gemm with all", "elementwise of two"])
def test_where_there_is_no_native_code_python_repeats_calls(name, monkeypatch):
    for part in ("_engine", "_loader", "_provider"):  # none, none on its way, nobody to ask for it
        monkeypatch.setattr(loading, part, None)
    function, make = CALLS[name]
    function.forget()
    for _ in range(ENOUGH):
        given, options = make()
        wanted = by_python(function, *make_alike(given), **make_alike(options))
        same(function(*given, **options), wanted)
    assert programs(function) == 1
    assert python_calls(function) == ENOUGH - 1


# --- what tells calls apart ------------------------------------------------------------------------------------------


def settle(function: Any, *given: Any, **options: Any) -> None:
    for _ in range(ENOUGH):
        function(*given, **options)


X = tensor(4, 8)


def _misaligned(x: Any) -> Any:
    made = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    made.copy_(x)
    return made


OTHERS: dict[str, Any] = {
    "shape": lambda: kernels.sum(tensor(4, 16), 1),
    "rank": lambda: kernels.sum(tensor(4, 8, 2), 1),
    "strides": lambda: kernels.sum(tensor(8, 4).T, 1),
    "type": lambda: kernels.sum(tensor(4, 8, dtype=torch.float64), 1),
    "alignment": lambda: kernels.sum(_misaligned(X), 1),
    "library": lambda: kernels.sum(normal(4, 8), 1),
    "an integer": lambda: kernels.sum(X, 0),
    "a negative integer": lambda: kernels.sum(X, -2),
    "a tuple": lambda: kernels.sum(X, (0, 1)),
    "a list": lambda: kernels.sum(X, [1]),
    "None": lambda: kernels.sum(X, None),
    "a name": lambda: kernels.sum(X, axis=1),
    "another name": lambda: kernels.sum(X, 1, keepdims=True),
    "a truth value": lambda: kernels.sum(X, 1, keepdims=False),
    "a config": lambda: kernels.sum(X, 1, config=kernels.ReductionConfig(64)),
    "another config": lambda: kernels.sum(X, 1, config=kernels.ReductionConfig(32)),
    "out": lambda: kernels.sum(X, 1, out=torch.empty(4)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_calls_that_differ_have_programs_of_their_own(what):
    kernels.sum.forget()
    settle(kernels.sum, X, 1)
    assert programs(kernels.sum) == 1
    for _ in range(ENOUGH):
        OTHERS[what]()
    assert programs(kernels.sum) == 2
    same(kernels.sum(X, 1), by_python(kernels.sum, X, 1))


def native_key(function: Any, *given: Any, **options: Any) -> bytes | None:
    native = loading.engine()
    if native is None:
        pytest.skip("no native code here")
    settle(kernels.softmax, X)  # native code knows of tensors
    settle(kernels.softmax, X.numpy())
    settle(kernels.softmax, torch.nn.Parameter(X))
    return native.call_key(function._parameters.holder(), *given, **options)


def test_keys_of_native_code_tell_all_ingredients_apart():
    def key(*given: Any, **options: Any) -> bytes:
        found = native_key(kernels.gemm, *given, **options)
        assert found is not None
        return found

    x = tensor(4, 8)
    readonly = normal(4, 8)
    readonly.flags.writeable = False
    seen = [
        key(x), key(x, x), key(x, None), key(x, c=x), key(x, b=x), key(tensor(8, 4)), key(tensor(8, 4).T), key(tensor(2, 4, 8)),
        key(x[:, :4]), key(x.to(torch.float64)), key(x.to(torch.int32)), key(_misaligned(x)), key(normal(4, 8)), key(readonly),
        key(normal(4, 8).astype(np.int32)), key(normal(4, 8).astype(">f4")), key(x, 1), key(x, -1), key(x, 1.0), key(x, True),
        key(x, False), key(x, 0), key(x, 0.0), key(x, -0.0), key(x, "a"), key(x, "b"), key(x, ""), key(x, "a" * 9), key(x, "a" * 8),
        key(x, (1,)), key(x, [1]), key(x, (1, 2)), key(x, ((1,), 2)), key(x, ()), key(x, (1, (2,))), key(x, float), key(x, int),
        key(x, 1 << 40), key(x, (x,)), key(x, [x]), key(x, eps=0.5), key(x, eps=0.25),
        key(x, alpha=1.0), key(x, alpha=0.5), key(x, alpha=0.0), key(x, alpha=-2.0), key(x, alpha=float("nan")), key(x, alpha=1),
        key(x, alpha=float("inf")), key(x, alpha=float("-inf")), key(x, alpha=1e-50), key(x, alpha=-1e-50),
    ]  # fmt: skip
    assert len(set(seen)) == len(seen)
    assert key(x) == key(tensor(4, 8)) == key(torch.nn.Parameter(x))
    assert key(x, alpha=0.5) == key(x, alpha=0.25) != key(x, beta=0.5)
    assert key(x, alpha=1e39) == key(x, alpha=float("inf"))  # as f32 has it
    assert key(x, "ab") == key(x, "".join(["a", "b"]))
    assert native_key(kernels.gemm, x, x, x) is None  # an array where none is expected
    assert native_key(kernels.gemm, x, x, config=x) is None
    assert native_key(kernels.sum, x, x) is None
    assert native_key(kernels.elementwise, x, x) is None
    assert native_key(kernels.elementwise, _shifted, *[x] * 40, out=x) is not None
    assert native_key(kernels.gemm, x, object()) is None
    assert native_key(kernels.gemm, x, 1 << 80) is None
    assert native_key(kernels.gemm, x, "a" * 100) is None
    assert native_key(kernels.gemm, x, tuple(range(500))) is None
    assert native_key(kernels.gemm, torch.zeros([1] * 9)) is None
    many = tuple(tensor(2, 2) for _ in range(call_program.MOST_REGISTERS + 1))
    assert native_key(kernels.gemm, many) is None


def test_keys_of_functions():
    x = tensor(4)

    def key(function: Any) -> bytes | None:
        return native_key(kernels.elementwise, function, x)

    def times(factor: Any, more: Any = None) -> Any:
        return lambda v, w=more: v * factor

    assert key(times(2)) == key(times(2)) is not None
    seen = [key(times(2)), key(times(3)), key(times(2.0)), key(times(True)), key(times(2, 1)), key(times(2, "a")),
            key(times(times(2))), key(times(times(3))), key(lambda v: v), key(lambda v: v + 1)]  # fmt: skip
    assert None not in seen
    assert len(set(seen)) == len(seen)
    code = times(2).__code__
    empty = types.CellType()
    there, here = (types.FunctionType(code, {"n": n}, closure=(types.CellType(2),)) for n in (1, 2))
    assert key(there) != key(here)
    assert key(types.FunctionType(code, {}, closure=(empty,))) is None
    assert key(times([2])) != key(times([3]))  # lists are told by what is in them
    assert key(times({2: 3})) is None
    assert key(times(x)) is None  # an array in a cell is not an argument

    def named(v: Any, *, factor: int = 2) -> Any:
        return v * factor

    assert key(named) is None

    def endless(v: Any) -> Any:
        return endless

    assert key(endless) is None


# --- functions among the arguments -----------------------------------------------------------------------------------

SCALE = 2.0
SETTINGS = types.SimpleNamespace(scale=2.0)
LIST = [2.0]


def _of_a_global(v: Any) -> Any:
    return v * SCALE


def _of_an_attribute(v: Any) -> Any:
    return v * SETTINGS.scale


def _of_an_element(v: Any) -> Any:
    return v * LIST[0]


def test_what_functions_read_is_looked_at_in_every_call(monkeypatch):
    x = tensor(8)
    settle(kernels.elementwise, _of_a_global, x)
    settle(kernels.elementwise, _of_an_attribute, x)
    settle(kernels.elementwise, _of_an_element, x)
    for scale in (3.0, 4.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setattr(SETTINGS, "scale", scale)
        LIST[0] = scale
        for _ in range(ENOUGH):
            for function in (_of_a_global, _of_an_attribute, _of_an_element):
                same(kernels.elementwise(function, x), x * scale)


def test_what_cells_hold_is_looked_at_in_every_call():
    x, scale, steps = tensor(8), 2.0, [2.0]

    def by_cell(v: Any) -> Any:
        return v * scale

    def by_list(v: Any) -> Any:
        return v * steps[0]

    for number in range(3 * ENOUGH):
        scale = steps[0] = float(number // ENOUGH + 2)
        same(kernels.elementwise(by_cell, x), x * scale)
        same(kernels.elementwise(by_list, x), x * scale)
        same(kernels.elementwise(lambda v: v * scale, x), x * scale)  # noqa: B023
    # one function for each: what another's cell holds by now does not matter
    functions = [lambda v, n=n: v * float(n) for n in range(3)]
    for _ in range(ENOUGH):
        for n, function in enumerate(functions):
            same(kernels.elementwise(function, x), x * n)


def test_a_function_that_is_made_anew_is_recognized():
    x, kept = tensor(8), []
    kernels.elementwise.forget()
    for _ in range(ENOUGH):
        kept.append(kernels.elementwise(lambda v: v * 3.0, x))
    assert programs(kernels.elementwise) == 1
    before = python_calls(kernels.elementwise)
    same(kernels.elementwise(lambda v: v * 3.0, x), x * 3.0)  # other code
    assert programs(kernels.elementwise) == 2
    assert python_calls(kernels.elementwise) == before


def test_functions_that_hold_modules_types_and_functions_are_taken_by_native_code():
    from kiln import Float32 as real
    from kiln import cute as language

    x, most = tensor(8), max
    for number in range(ENOUGH):
        got = kernels.elementwise(
            lambda v: language.where(v > 0, v, v * 0).to(real) + most(1, 2), x, out_dtype=torch.float32
        )
        same(got, torch.relu(x) + 2)
        if number == ENOUGH - 2:
            before = python_calls(kernels.elementwise)
    assert loading.engine() is None or python_calls(kernels.elementwise) == before


def test_objects_of_the_users_own_types_are_looked_into():
    @dataclasses.dataclass(frozen=True)
    class OwnConfig:
        parts: list[float]

    held, x = OwnConfig([2.0]), tensor(8)
    for scale in (2.0, 3.0):
        held.parts[0] = scale
        for _ in range(ENOUGH):
            same(kernels.elementwise(lambda v: v * held.parts[0], x), x * scale)
    assert not recorder._is_constant(held)
    assert recorder._is_constant(IN_PARTS)
    assert recorder._is_constant(torch.float16)
    assert recorder._is_constant(np.dtype(np.float32))


def test_functions_of_one_code_that_read_different_globals():
    x, code = tensor(8), _of_a_global.__code__
    functions = [types.FunctionType(code, {"SCALE": float(n)}) for n in range(2)]
    for _ in range(ENOUGH):
        for n, function in enumerate(functions):
            same(kernels.elementwise(function, x), x * n)


def test_other_callables():
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, v: Any) -> Any:
            return v * self.factor

    x, scaled = tensor(8), Scaled(2.0)
    for _ in range(ENOUGH):
        same(kernels.elementwise(scaled, x), x * 2.0)
    scaled.factor = 3.0
    same(kernels.elementwise(scaled, x), x * 3.0)
    settle(kernels.elementwise, cute.math.exp, x)
    np.testing.assert_allclose(kernels.elementwise(cute.math.exp, x), x.exp(), 1e-5)


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_an_array_that_is_passed_twice_is_not_taken_for_one():
    a, b = tensor(8, 8), tensor(8, 8)
    kernels.gemm.forget()
    for _ in range(ENOUGH):
        same(kernels.gemm(a, a), by_python(kernels.gemm, a, a))
        same(kernels.gemm(a, b), by_python(kernels.gemm, a, b))
    assert programs(kernels.gemm) == 1
    row = normal(8)
    for other in (row, normal(8)):
        for _ in range(ENOUGH):
            same(kernels.elementwise(_shifted, row, other), row * 2.0 + other)


@pytest.mark.quick(1)
@pytest.mark.parametrize("make", [normal, tensor])
def test_what_has_memory_in_common_is_told_apart_in_every_call(make):
    """What is refused in the first call of a kind is so in a later one that differs in nothing but where arrays lie."""
    rows, small = kernels.Sm80AttentionConfig(16, 16, 1, 1), kernels.Sm80AttentionBackwardConfig(16, 16)
    half = np.float16 if make is normal else torch.float16
    q, k, v, dout = (make(1, 16, 1, 32, dtype=half) for _ in range(4))
    memory = make(96)
    x, moved, apart = memory[:64].reshape(8, 8), memory[8:72].reshape(8, 8), make(8, 8)
    out, lse = kernels.flash_attention(q, k, v, return_lse=True, config=rows)
    like = lambda *given: [make(*a.shape, dtype=a.dtype) for a in given]
    backward = lambda dq, dk, dv: kernels.flash_attention_backward(
        dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, config=small
    )
    weights, bounds = make(1, 8, 8), np.array([8], np.int32) if make is normal else torch.tensor([8], dtype=torch.int32)
    places = [make(4, 2), np.zeros((4, 2), np.int32) if make is normal else torch.zeros(4, 2, dtype=torch.int32)]
    for right, wrong in (
        (lambda: kernels.flash_attention(q, k, v, out=like(q)[0], config=rows), [
            lambda: kernels.flash_attention(q, k, v, out=k, config=rows), lambda: kernels.flash_attention(q, k, v, out=v, config=rows)]),
        (lambda: backward(*like(q, k, v)), [lambda: backward(like(q)[0], k, like(v)[0]), lambda: backward(*[like(k)[0]] * 3)]),
        (lambda: kernels.softmax(x, out=apart), [lambda: kernels.softmax(x, out=moved)]),
        (lambda: kernels.gemm(x, apart, out=like(x)[0]), [lambda: kernels.gemm(x, apart, out=x), lambda: kernels.gemm(x, apart, out=moved)]),
        (lambda: kernels.grouped_gemm(x, weights, offsets=bounds, out=apart), [
            lambda: kernels.grouped_gemm(x, weights, offsets=bounds, out=x),
            lambda: kernels.grouped_gemm(x, weights, offsets=bounds, out=weights[0])]),
        (lambda: kernels.elementwise(_shifted, x, apart, out=like(x)[0]), [lambda: kernels.elementwise(_shifted, x, apart, out=moved)]),
        (lambda: kernels.fused_add_rms_norm(x, apart, out=like(x)[0], residual_out=like(x)[0]), [
            lambda: kernels.fused_add_rms_norm(x, apart, out=apart, residual_out=apart)]),
        (lambda: kernels.topk_softmax(apart[:4], 2, values=places[0], indices=places[1]), [
            lambda: kernels.topk_softmax(memory[:32].reshape(4, 8), 2, values=memory[:8].reshape(4, 2), indices=places[1])]),
    ):  # fmt: skip
        for _ in range(ENOUGH + 2):
            right()
        for call in wrong:
            for _ in range(3):
                with pytest.raises(kiln.DSLUserCodeTypeError, match="memory in common|shares memory|begins where"):
                    call()


@pytest.mark.parametrize("make", [normal, tensor])
def test_what_may_have_memory_in_common_is_taken_by_native_code(make):
    """In place, and between the elements of another array: other keys, and Python takes no more calls than of others."""
    x, y = make(8, 8), make(8, 8)
    rows = [make(8, 16) for _ in range(3)]
    calls_ = [
        lambda: kernels.softmax(x, out=y),
        lambda: kernels.softmax(x, out=x),
        *(functools.partial(lambda z: kernels.softmax(z[:, ::2], out=z[:, 1::2]), z) for z in rows),
        *(functools.partial(lambda z: kernels.softmax(z[:, :8], out=z[:, 8:]), z) for z in rows),
    ]
    for call in calls_:
        for _ in range(ENOUGH):
            call()
    before = python_calls(kernels.softmax)
    for call in calls_:
        call()
    assert loading.engine() is None or python_calls(kernels.softmax) == before
    same(rows[0][:, 8:], kernels.softmax(rows[0][:, :8]))


def test_a_result_is_written_in_place_and_given_back():
    for make in (tensor, normal):
        for _ in range(ENOUGH):
            x = make(4, 8)
            wanted = by_python(kernels.softmax, x)
            assert kernels.softmax(x, out=x) is x
            same(x, wanted)


def test_numbers_that_change_are_taken_from_each_call():
    a, b, c = tensor(8, 8), tensor(8, 8), tensor(8, 8)
    kernels.gemm.forget()
    for n in range(2 * ENOUGH):
        alpha, beta = 0.25 + n, 3.5 - n / 4
        np.testing.assert_allclose(
            kernels.gemm(a, b, c=c, alpha=alpha, beta=beta), alpha * (a @ b) + beta * c, rtol=1e-4, atol=1e-4
        )
    assert programs(kernels.gemm) <= 3  # beta is 1 and 0 on the way


def test_tensors_that_require_gradients():
    x, weight = tensor(4, 8).requires_grad_(), torch.nn.Parameter(tensor(8))
    wanted = by_python(kernels.rms_norm, x.detach(), weight.detach())
    for _ in range(ENOUGH):
        got = kernels.rms_norm(x, weight)
        assert not got.requires_grad
        same(got, wanted)


def test_arrays_that_are_only_read_may_be_read_only():
    for _ in range(ENOUGH):
        q, k = normal(1, 16, 1, 8, dtype=np.float16), normal(1, 1, 1, 8, dtype=np.float16)
        v = np.broadcast_to(k, (1, 16, 1, 8))
        assert not v.flags.writeable
        same(kernels.flash_attention(q, v, v), by_python(kernels.flash_attention, q, v.copy(), v.copy()))
        a, b = normal(16, 8), normal(8, 16)
        a.flags.writeable = b.flags.writeable = False
        same(kernels.gemm(a, b), by_python(kernels.gemm, a.copy(), b.copy()))
        same(kernels.sum(v, 3), by_python(kernels.sum, v.copy(), 3))
        row = ml_dtypes_row()
        assert arrays.writable_view(row).dtype == row.dtype
        assert arrays.address(arrays.writable_view(row)) == arrays.address(row)


def ml_dtypes_row() -> np.ndarray:
    import ml_dtypes

    return np.broadcast_to(np.ones(1, ml_dtypes.bfloat16), (4,))


def test_arrays_of_other_libraries_and_numbers_of_numpy():
    class Other:
        """Knows nothing but DLPack."""

        def __init__(self, x: np.ndarray) -> None:
            self._x = x

        def __dlpack__(self, **options: Any) -> Any:
            return self._x.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self._x.__dlpack_device__()

    x = normal(4, 8)
    for _ in range(ENOUGH):
        np.testing.assert_array_equal(np.asarray(kernels.softmax(Other(x))), by_python(kernels.softmax, x))
        same(kernels.elementwise(_shifted, x, np.float32(3.0)), x * 2.0 + 3.0)


def test_what_is_in_an_array_that_is_no_operand_matters():
    x, n = tensor(4, 8), normal(4, 8)
    for _ in range(ENOUGH):
        for axis in (0, 1):
            same(kernels.sum(x, np.int64(axis)), by_python(kernels.sum, x, axis))
            same(kernels.sum(n, axis=np.int32(axis)), by_python(kernels.sum, n, axis))
            same(kernels.sum(x, torch.tensor(axis)), by_python(kernels.sum, x, axis))
            same(kernels.sum(x, axis=np.array(axis)), by_python(kernels.sum, x, axis))
            same(kernels.rms_norm(x, eps=np.float64(axis)), by_python(kernels.rms_norm, x, eps=float(axis)))
    for scale in (1.0, 2.0, 3.0):
        dloss = np.float32(scale)
        for given in (dloss, torch.tensor(dloss), float(dloss)):
            wanted = by_python(kernels.cross_entropy_backward, scale, x, CLASSES)
            for _ in range(ENOUGH):
                got = kernels.cross_entropy_backward(given, x, CLASSES)
                np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-6)


def test_arrays_without_elements():
    for shape, axis in (((0, 4), 0), ((4, 0), 1), ((0,), None)):
        for x in (torch.zeros(shape), np.zeros(shape, np.float32)):
            for _ in range(ENOUGH):
                same(kernels.sum(x, axis), by_python(kernels.sum, x, axis))


def test_nothing_is_leaked():
    x, function = tensor(4, 8), lambda v: v + 1.0
    result = None
    settle(kernels.elementwise, function, x)
    settle(kernels.softmax, x)
    gc.collect()
    counts = [sys.getrefcount(o) for o in (x, function, None, torch.empty_like)]
    for _ in range(200):
        result = kernels.elementwise(function, x)
        result = kernels.softmax(x)
    for before, now in zip(counts, [sys.getrefcount(o) for o in (x, function, None, torch.empty_like)], strict=True):
        assert abs(now - before) < 50
    assert sys.getrefcount(result) == 2


# --- errors, threads, targets ----------------------------------------------------------------------------------------


def test_errors_are_those_of_a_first_call():
    good, bad = tensor(4, 8), torch.zeros(4, 8, dtype=torch.int32)
    with pytest.raises(TypeError, match="Int32 elements") as first:
        kernels.softmax(bad)
    settle(kernels.softmax, good)
    for _ in range(ENOUGH):
        with pytest.raises(TypeError, match="Int32 elements") as later:
            kernels.softmax(bad)
        assert str(later.value) == str(first.value)
        with pytest.raises(TypeError, match="missing|required"):
            kernels.softmax()
        with pytest.raises(TypeError, match="unexpected keyword"):
            kernels.softmax(good, nothing=1)
        with pytest.raises(TypeError, match=r"rms_norm: weight is builtins\.list, no array"):
            kernels.rms_norm(good, [1.0])
    frozen = np.zeros((4, 8), np.float32)
    settle(kernels.softmax, frozen.copy(), out=np.empty((4, 8), np.float32))
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        kernels.softmax(frozen.copy(), out=frozen)


def test_a_config_that_only_equals_one_that_passed_is_refused():
    x = tensor(4, 8)
    for _ in range(2):
        kernels.sum(x, 1, config=kernels.ReductionConfig(64))
        with pytest.raises(TypeError, match=r"threads is 64\.0"):
            kernels.sum(x, 1, config=kernels.ReductionConfig(64.0))  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=r"parts is \[1\]"):
            kernels.sum(x, 1, config=kernels.ReductionConfig(parts=[1]))  # pyright: ignore[reportArgumentType]


def test_threads_call_at_the_same_time():
    x = [tensor(4, 8) for _ in range(4)]
    wanted = [by_python(kernels.softmax, one) for one in x]
    kernels.softmax.forget()
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            for _ in range(50):
                same(kernels.softmax(x[n]), wanted[n])
                same(kernels.elementwise(lambda v: v + float(n), x[n]), x[n] + n)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_another_target_is_asked_again(monkeypatch):
    """Not for a moment does the program of one target serve another."""
    x = tensor(4, 8)
    settle(kernels.softmax, x)
    monkeypatch.setattr(targets, "_process_choice", "nvidia")
    with pytest.raises(TypeError, match="memory of the host"):
        kernels.softmax(x)
    with kiln.target("cpu"):
        same(kernels.softmax(x), by_python(kernels.softmax, x))
    monkeypatch.setattr(targets, "_process_choice", "cpu")
    same(kernels.softmax(x), by_python(kernels.softmax, x))


def test_inside_of_a_choice_native_code_takes_calls_too():
    x = tensor(5, 8)
    wanted = by_python(kernels.softmax, x)
    settle(kernels.softmax, x)
    with kiln.target("cpu"):
        settle(kernels.softmax, x)
        before = python_calls(kernels.softmax)
        same(kernels.softmax(x), wanted)
        assert loading.engine() is None or python_calls(kernels.softmax) == before
        with kiln.target("nvidia"), pytest.raises(TypeError, match="memory of the host"):
            kernels.softmax(x)
        with kiln.sanitize():
            same(kernels.softmax(x), wanted)
        assert loading.engine() is None or python_calls(kernels.softmax) == before
    same(kernels.softmax(x), wanted)


def test_another_architecture_is_asked_again(monkeypatch):
    x = tensor(4, 8)
    settle(kernels.softmax, x)
    before = programs(kernels.softmax)
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    kernels.softmax(x)
    assert programs(kernels.softmax) == before + 1


def test_under_the_sanitizer_nothing_is_repeated():
    x = tensor(2, 4)
    settle(kernels.softmax, x)
    before = python_calls(kernels.softmax)
    with kiln.sanitize() as found:
        same(kernels.softmax(x), by_python(kernels.softmax, x))
    assert not found
    assert python_calls(kernels.softmax) == before


def test_arrays_on_different_devices_are_refused():
    walk = types.SimpleNamespace(arrays=[types.SimpleNamespace(device=torch.device("cuda", n)) for n in (0, 1, 1)])
    tensors = pytest.MonkeyPatch()
    tensors.setattr(arrays, "is_torch", lambda x: True)
    try:
        with pytest.raises(TypeError, match="softmax of arrays on the devices cuda:0, cuda:1"):
            kernels.softmax._device(walk)
        walk.arrays.pop(0)
        assert kernels.softmax._device(walk) == 1
    finally:
        tensors.undo()


def test_kernels_run_on_the_device_of_their_arrays(monkeypatch):
    entered: list[Any] = []
    target = targets.get_target()

    class Scope:
        def __init__(self, number: Any) -> None:
            self.number = number

        def __enter__(self) -> None:
            entered.append(self.number)

        def __exit__(self, *_: object) -> None:
            entered.append("left")

    monkeypatch.setattr(target, "device", Scope, raising=False)
    monkeypatch.setattr(recorder.KernelFunction, "_device", lambda self, walk: 3)
    monkeypatch.setattr(target, "device_guards", lambda number: [Guard(IS_TRUE, current)])
    on = False

    def current() -> bool:
        return on

    x = tensor(3, 8)
    kernels.softmax.forget()
    settle(kernels.softmax, x)
    assert entered == [3, "left"] * ENOUGH  # another device is current: Python switches in every call
    on = True
    kernels.softmax(x)
    assert loading.engine() is None or entered == [3, "left"] * ENOUGH


# --- the recorder ----------------------------------------------------------------------------------------------------


def _recorded(function: Any) -> Any:
    return recorder.kernel_function("x", "out")(function)


def test_what_was_done_past_the_recorder_is_not_repeated():
    @_recorded
    def written_to(x: Any) -> Any:
        made = kernels.softmax(x)
        made += 1.0
        return made

    @_recorded
    def of_a_copy(x: Any) -> Any:
        return kernels.softmax(x * 2.0)

    @_recorded
    def nothing_launched(x: Any) -> Any:
        return arrays.empty_like(x).fill_(1.0)

    @_recorded
    def told(x: Any) -> Any:
        recorder.cannot_repeat("it says so")
        return kernels.softmax(x)

    @_recorded
    def another_result(x: Any) -> Any:
        return kernels.softmax(x).sum()

    for function in (written_to, of_a_copy, nothing_launched, told, another_result):
        for _ in range(ENOUGH):
            x = tensor(4, 8)
            same(function(x), by_python(function, x))
        assert list(function._programs.values()) == [None]


def test_what_is_made_and_not_used_is_not_made_again():
    @_recorded
    def with_an_example(x: Any) -> Any:
        arrays.empty(x, (5,), None)
        view = arrays.with_batch(arrays.transposed(x))
        made = kernels.softmax(arrays.contiguous(view))
        return made

    x = tensor(4, 8)
    for _ in range(ENOUGH):
        same(with_an_example(x), by_python(with_an_example, x))
    (program,) = with_an_example._programs.values()
    names = [step.function.__name__ for step in program.steps if isinstance(step, call_program.Call)]
    assert names == ["swapaxes", "getitem", "contiguous", "empty_like"]


def test_a_recorded_number_must_reach_a_launch():
    def scaled(x: Any, *, factor: float = 1.0) -> Any:
        return kernels.elementwise(lambda v: v * (factor + 0.0), x)

    function = recorder.kernel_function("x", numbers=("factor",))(scaled)
    x = tensor(8)
    for factor in (2.0, 3.0, 4.0, 5.0):
        same(function(x, factor=factor), x * factor)


def test_functions_look_like_functions():
    import inspect
    import pickle

    assert "config" in inspect.signature(kernels.softmax).parameters
    assert kernels.softmax.__doc__ and kernels.softmax.__name__ == "softmax"
    assert pickle.loads(pickle.dumps(kernels.softmax)) is kernels.softmax
    assert "softmax" in repr(kernels.softmax)
