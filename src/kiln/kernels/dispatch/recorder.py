"""Recorded calls: Python runs a library function once for each kind of arguments; later calls repeat its launches.

What a function does depends on its arrays only by types, shapes, strides, alignment and devices, and on which written
arrays share memory with others; on its other arguments by their values; and on the current target. So Python runs it
once for each of those, under a recorder (`interop/arguments/program.py`), and native code repeats it after a few calls.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from ...base_dsl import guards, packages, sanitizing
from ...base_dsl import target as targets
from ...base_dsl import trace as tracing
from ...base_dsl.dependencies import Dependencies
from ...base_dsl.diagnostics import DSLBaseError
from ...base_dsl.dsl import shorten_traceback
from ...base_dsl.guards import Guard
from ...base_dsl.numeric.meta import TYPES
from ...base_dsl.static_key import Met, static_key
from ...cute.host.arrays import introduce_array, note_write
from ...interop.arguments import loading, plan
from ...interop.arguments import program as call_program
from ...interop.arguments.program import Passed, Program, Recorder
from . import arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...interop.arguments.engine import Engine

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_MAX_PROGRAMS = 2048
_MAX_NATIVE_KEYS = 8
"""The most native keys of one program, for equal arguments that are other objects in each call."""
_PLAIN = (int, bool, str, type(None))


def mode() -> Any:
    """Return the part of a key that says where and how code runs."""
    return targets.target_key(), targets.get_target().device_key()


def launch(compiled: Any, leaves: list[Any], places: Sequence[tuple[int, Any]], stream: int) -> None:
    """Call compiled code and record the launch. `places` are the leaves that are addresses of arrays, `stream` is the
    leaf of the stream."""
    compiled.run_leaves(leaves)
    recorder = call_program.recorder()
    if recorder is not None:
        recorder.launched(compiled, leaves, places, stream)


class _Parameters:
    """The parameters of a function: which may be arrays, and which are numbers that change."""

    def __init__(
        self,
        function: Callable[..., Any],
        names: tuple[str, ...],
        other_arrays: tuple[str, ...],
        numbers: tuple[str, ...],
        written: tuple[str, ...],
        may_overlap: tuple[str, ...],
    ):
        self.arrays = names
        """Parameters that are arrays or None, or (extras, out) a list of arrays."""
        self.numbers = tuple(map(sys.intern, numbers))
        self.written = tuple(map(sys.intern, (name for name in names if name in written)))
        """Parameters that are written."""
        self.may_overlap = (*self.written, *map(sys.intern, may_overlap))
        """Parameters whose overlaps with others are part of the key."""
        others = (name for name in (*names, *other_arrays) if name not in self.may_overlap)
        self.named = (*self.may_overlap, *map(sys.intern, others))
        """Parameters that may be arrays, first those of `may_overlap`."""
        parameters = inspect.signature(function).parameters.values()
        self.order = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        before = [name in self.named for name in self.order]
        others = any(p.name in self.named for p in parameters if p.kind is p.VAR_POSITIONAL)
        self.positions = tuple(before + [others] * (64 - len(before)))
        """By position, whether an argument may be an array; those after the last as the last."""

    def holder(self) -> tuple[Any, ...]:
        """Return what native code needs (see `Engine.install`)."""
        mask = sum(may << place for place, may in enumerate(self.positions))
        overlapping = sum((name in self.may_overlap) << place for place, name in enumerate(self.order))
        return {}, self.numbers, plan.words([mask, overlapping, len(self.may_overlap)]), self.named


class _CallArguments:
    """The arguments of a call: their key, and the arrays and numbers among them."""

    def __init__(self, positional: tuple[Any, ...], options: dict[str, Any], parameters: _Parameters) -> None:
        self.positional = positional
        self.options = options
        self.parameters = parameters
        self.arrays: list[Any] = []
        self.names: list[str] = []
        """The parameter of each array."""
        self.numbers: list[float] = []
        self.objects: list[Any] = []
        """Objects that native keys name by address, and that must stay alive."""
        self.code_owners: list[Any] = []
        """Functions and objects whose code may read what is no argument."""
        self.foreign = False
        """Whether there are arrays of other libraries than numpy and torch, or numpy scalars as arrays."""
        self.unexpected_array = False
        """Whether there is an array where none is expected: the function may depend on its elements."""
        self.torch = packages.loaded("torch")
        parts: list[Any] = [len(positional)]
        for place, value in enumerate(positional):
            self._name = parameters.order[place] if place < len(parameters.order) else ""
            parts.append(self._key(value, parameters.positions[min(place, 63)]))
        for name, value in options.items():
            self._name = name
            self.objects.append(name)
            changes = name in parameters.numbers and type(value) is float
            parts += [name, self._number(value) if changes else self._key(value, name in parameters.named)]
        self._parts = parts
        self.written, self.may_overlap = (
            [place for place, name in enumerate(self.names) if name in which]
            for which in (parameters.written, parameters.may_overlap)
        )
        """Which of the arrays are written, and which overlaps are part of the key."""

    def with_others(self, others: Iterator[Any], numbers: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other arrays in place of theirs, in order, and other numbers by name."""

        def other(value: Any, expected: bool) -> Any:
            if type(value) is tuple or type(value) is list:
                return type(value)(other(x, expected) for x in value)
            return next(others) if arrays.is_array(value) and (expected or not arrays.is_number(value)) else value

        positions = self.parameters.positions
        named = self.parameters.named
        positional = tuple(other(value, positions[min(n, 63)]) for n, value in enumerate(self.positional))
        options = {
            name: numbers[name] if name in numbers else other(value, name in named)
            for name, value in self.options.items()
        }
        return positional, options

    def key(self) -> Any:
        """Return a key that is equal for calls of the same program."""
        return (mode(), *self._parts, *self._overlapping_pairs())

    def pairs(self, some: list[int]) -> Iterator[tuple[int, int]]:
        """Yield pairs of some of the arrays with all others, each pair once."""
        for one in some:
            yield from ((one, other) for other in range(len(self.arrays)) if other > one or other not in some)

    def _overlapping_pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield pairs of arrays that may overlap, with the distance of their addresses."""
        if not self.may_overlap:
            return
        spans = [arrays.span(x) for x in self.arrays]
        for one, other in self.pairs(self.may_overlap):
            if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]:
                yield one, other, arrays.address(self.arrays[one]) - arrays.address(self.arrays[other])

    def _number(self, value: float) -> Any:
        self.numbers.append(value)
        short = arrays.as_f32(value)
        return Passed, value == 1.0, value == 0.0, value > 0.0, value != value, short == 0.0, short - short == 0.0

    def _key(self, value: Any, expected: bool) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is tuple or kind is list:
            return (kind, *(self._key(x, expected) for x in value))
        if arrays.is_array(value):
            return self._array(value, expected)
        self.objects.append(value)
        self.code_owners.append(value)
        return static_key(value)

    def _array(self, value: Any, expected: bool) -> Any:
        kind = type(value)
        if not expected:
            if arrays.is_number(value):  # an axis, for example
                return kind, value.dtype, value.tobytes()
            self.unexpected_array = True
        self.arrays.append(value)
        self.names.append(self._name)
        if self.torch is not None and isinstance(value, self.torch.Tensor):
            address = arrays.address(value)
            where = -1 if value.is_neg() or not address else address % arrays.MAX_VECTOR_BYTES
            return kind, value.dtype, value.shape, value.stride(), value.device, where
        if arrays.is_numpy(value):
            where = arrays.address(value) % arrays.MAX_VECTOR_BYTES
            return kind, value.dtype, value.shape, value.strides, value.flags.writeable, where
        self.foreign = True
        return kind


_functions: weakref.WeakSet[KernelFunction] = weakref.WeakSet()


def forget() -> None:
    """Forget all programs of all functions."""
    for function in list(_functions):
        function.forget()


class KernelFunction:
    """A library function whose calls are recorded and repeated. Its slot `_native` holds programs for native code."""

    __slots__ = ("__dict__", "__weakref__", "_native")

    def __init__(self, function: Callable[..., Any], parameters: _Parameters) -> None:
        functools.update_wrapper(self, function)
        self.__name__: str = function.__name__
        self.__qualname__ = function.__qualname__
        self._function = function
        self._parameters = parameters
        self._programs: dict[Any, Program | None] = {}
        _functions.add(self)

    def _run_in_python(self, *positional: Any, **options: Any) -> Any:
        if call_program.recorder() is not None:
            return self._function(*positional, **options)
        try:
            return self._run(positional, options)
        except DSLBaseError as failure:
            shorten_traceback(failure)
            raise

    def _run(self, positional: tuple[Any, ...], options: dict[str, Any]) -> Any:
        call = _CallArguments(positional, options, self._parameters)
        if call.foreign:
            positional, options = call.with_others(map(arrays.as_supported, call.arrays), {})
            return arrays.converted_like(self(*positional, **options), call.arrays[0])
        target = targets.get_target()
        device = self._device(call)
        with target.device(device):
            if sanitizing.kinds() or not target.launches() or not call.arrays or call.unexpected_array:
                self._check(call)
                self._note_writes(None, call)
                return self._function(*positional, **options)
            key = call.key()
            program = self._programs.get(key, _UNKNOWN)
            if program is _UNKNOWN or (program is not None and not program.holds()):
                result = self._record(key, call, device)
                self._note_writes(self._programs.get(key), call)
                return result
            self._note_writes(program, call)
            if program is None:
                return self._function(*positional, **options)
            result = program.run(call.arrays, call.numbers, arrays.stream_of(call.arrays[0]))
        program.calls += 1
        if program.calls <= _MAX_NATIVE_KEYS:
            self._use_native(program, call)
        return result

    __call__ = _run_in_python

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<kernel function {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by its name, as functions are

    def forget(self) -> None:
        """Forget all programs."""
        self._programs.clear()
        if hasattr(self, "_native"):
            self._native[0].clear()

    def _note_writes(self, program: Program | None, call: _CallArguments) -> None:
        """Tell frameworks which arrays a call writes to."""
        for place in call.written if program is None else program.written:
            note_write(call.arrays[place])

    # -- recording ---------------------------------------------------------------------------------------

    def _device(self, call: _CallArguments) -> int | None:
        """Return the number of the GPU of the arrays; None without one."""
        indices = {x.device.index for x in call.arrays if arrays.is_torch(x) and x.device.type == "cuda"}
        arrays.require(
            len(indices) <= 1,
            f"{self.__name__} of arrays on the devices {', '.join(f'cuda:{n}' for n in sorted(indices))}",
            hint="all arrays of a call are on one device: x.to(device)",
        )
        return indices.pop() if indices else None

    def _check(self, call: _CallArguments) -> None:
        """Raise if an argument is no array where one is needed, or if written arrays overlap others."""
        parameters = self._parameters
        if not call.arrays and call.positional and parameters.order[0] in parameters.arrays:
            kinds = ", ".join(type(x).__name__ for x in call.positional)
            raise arrays.refusal(f"{self.__name__} of {kinds}: no arrays", arrays.ARRAYS)
        for name, value in (*zip(parameters.order, call.positional), *call.options.items()):
            if name in parameters.arrays:
                for x in value if name in ("extras", "out") and isinstance(value, (list, tuple)) else [value]:
                    arrays.require_array(x, self.__name__, name)
        for x in call.arrays:
            arrays.require_materialized(x, self.__name__)
        for one in call.written:
            arrays.require_distinct_elements(call.arrays[one], f"{self.__name__}: {call.names[one]}")
        for one, other in call.pairs(call.written):
            out = call.arrays[one]
            x = call.arrays[other]
            name = call.names[one]
            both = other in call.written
            arrays.require(
                (not both and (x is out or arrays.same_view(x, out))) or not arrays.overlap(x, out),
                f"{self.__name__}: {name} {_layout_text(out)} has memory in common with an array {_layout_text(x)} "
                f"that is {'written' if both else 'read'}, {call.names[other]}",
                hint="what is written may be an array that is read itself, as it lies, or lies apart from all others",
            )

    def _record(self, key: Any, call: _CallArguments, device: int | None) -> Any:
        """Run the function under a recorder, keep its program, and return the result."""
        loading.prepare(programs=True)
        self._check(call)
        options = call.options
        numbers = {name: Passed(options[name]) for name in self._parameters.numbers if type(options.get(name)) is float}
        for place, number in enumerate(numbers[name] for name in options if name in numbers):
            number.place = place
        # an array that is passed twice becomes two: they are two in other calls
        apart = [x if all(x is not y for y in call.arrays[:n]) else arrays.alias(x) for n, x in enumerate(call.arrays)]
        positional, options = call.with_others(iter(apart), numbers)
        with Recorder(apart, list(numbers.values()), arrays.is_array) as recorder:
            result = self._function(*positional, **options)
        program = recorder.program(result, arrays.address)
        if len(self._programs) >= _MAX_PROGRAMS:
            self.forget()
        if program is not None:
            program.device = device
            program.keep(*call.objects)
            if call.code_owners:
                program.holds = Dependencies(None, call.code_owners).unchanged
        self._programs[key] = program
        native = loading.loaded()
        if native is not None:  # now, while a kernel is compiled, and not in the next call
            _introduce(native, call)

        def own(x: Any) -> Any:
            place = recorder.place_of(x)
            return call.arrays[place] if place is not None and place < len(apart) else x

        return tuple(map(own, result)) if type(result) is tuple else own(result)

    # -- native calls ------------------------------------------------------------------------------------

    def _use_native(self, program: Program, call: _CallArguments) -> None:
        """Let native code take the next call like this one."""
        native = loading.loaded()
        needed = _guards(program)
        if native is None or needed is None or not _introduce(native, call):
            return
        if _has_attributes(call.code_owners):  # native keys do not contain them
            return
        for value in call.objects:
            if _is_constant(value):
                native.add_constant(type(value))
        if not hasattr(self, "_native"):
            self._native = self._parameters.holder()
        key = native.call_key(self._native, *call.positional, **call.options)
        if key is not None and program.prepare(needed):
            program.keep(*call.objects)
            self._native[0][key] = program


_UNKNOWN: Any = object()


def _introduce(native: Engine, call: _CallArguments) -> bool:
    """Register library functions and array types with native code; return whether it can read the arrays."""
    _install(native)
    return all([introduce_array(native, type(x)) for x in call.arrays])  # noqa: C419


def _layout_text(x: Any) -> str:
    return f"of shape {tuple(x.shape)} and strides {arrays.strides(x)}"


def _has_attributes(values: list[Any]) -> bool:
    """Return whether some values hold functions with attributes."""
    met = Met()
    static_key(values, met)
    return any(function.__dict__.keys() - {"__wrapped__"} for function in met.functions)


def _is_constant(value: Any) -> bool:
    """Return whether objects of a type never change: element types, and configs."""
    if type(value) in _constants:
        return True
    libraries = [packages.loaded(name) for name in ("numpy", "torch")]
    return any(library is not None and isinstance(value, library.dtype) for library in libraries)


_constants: set[type] = set()


def add_constant(kind: type) -> None:
    """Declare that objects of a type never change."""
    _constants.add(kind)


def _guards(program: Program) -> list[Guard] | None:
    """Return what must hold for native code to repeat a program."""
    chosen = targets.choice_guards()
    if chosen is None:  # inside `with kiln.target(...)` no word in memory tells the target
        chosen = [Guard(guards.IS_TRUE, functools.partial(_is_chosen, targets.target_key()))]
    held = program.holds
    reads = held.__self__ if isinstance(held, types.MethodType) else None
    return [
        Guard(guards.IS_ZERO, call_program.recording),
        Guard(guards.IS_ZERO, tracing.active),
        *chosen,
        *targets.get_target().device_guards(program.device),
        *targets.get_target().launch_guards(),
        *(reads.guards() if isinstance(reads, Dependencies) else []),
    ]


def _is_chosen(key: str) -> bool:
    return targets.target_key() == key


@functools.lru_cache(maxsize=1)
def _install(native: Engine) -> None:
    """Let native code take calls; others reach the method that was there before."""
    native.add_programs(Program, "_native")
    for kind in {types.BuiltinFunctionType, types.ModuleType, *map(type, TYPES.values())}:
        native.add_constant(kind)
    native.install("recorded", KernelFunction, "__call__", "_native", KernelFunction._run_in_python)


def kernel_function(
    *names: str,
    other_arrays: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    written: tuple[str, ...] = ("out",),
    may_overlap: tuple[str, ...] = (),
) -> Callable[[_Function], _Function]:
    """Decorate a function whose calls are recorded and repeated. Editors show its own signature.

    `names` are the parameters that are arrays or None, or (extras, out) a list of arrays; `other_arrays` others that
    may be arrays. The function must not depend on elements. `numbers` are parameters whose values, floats passed by
    name, differ from call to call: the function may depend on whether such a number is 0 or 1, and on its sign, and
    passes it on to launches. `written` parameters must not overlap each other, nor others, except that one may be an
    array that is read itself; `may_overlap` are others that are written, whose overlaps the function checks itself. The
    function accesses arrays only through `arrays`, or says `cannot_repeat`.
    """

    def decorate(function: Any) -> Any:
        return KernelFunction(function, _Parameters(function, names, other_arrays, numbers, written, may_overlap))

    return decorate


def cannot_repeat(why: str) -> None:
    """Tell the recorder that a call depends on more than its key."""
    recorder = call_program.recorder()
    if recorder is not None:
        recorder.give_up(why)
