"""Makes call plans in the calls that Python takes, so that native code can take the next ones."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

from ...base_dsl import guards as guarding
from ...base_dsl import packages
from ...base_dsl import trace as tracing
from ...base_dsl.arguments import MAX64, MIN64, element_annotations, is_numeric_type, number_format
from ...base_dsl.caller import Caller
from ...base_dsl.compiled_function import CompiledFunction
from ...base_dsl.function import JitFunction
from ...base_dsl.guards import Guard
from ...base_dsl.static_key import Met, static_key
from ...base_dsl.target import choice_guards, get_target, target_key
from ...base_dsl.typing import Boolean, Float32, Int32, Int64, Integer, Numeric
from . import loading, plan
from .plan import Planner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...base_dsl.dependencies import Dependencies
    from ...base_dsl.specializations import Specialization
    from .engine import Engine

_MAX_LESSONS = 8
"""The number of calls of a function from which native code learns types of arguments; it need not know all."""
_MAX_PLANS = 16
"""The number of times a plan is made anew because classes changed without effect."""
_MAX_CANDIDATES = 16
"""The number of specialisations that native code tries."""


class NativeCaller(Caller):
    """Takes calls by native code. A language overrides `record`, `is_array_key` and `introduce` for its arguments."""

    def record(self, key: object, annotation: object, planner: Planner) -> bytes | None:
        """Return the record that matches arguments of a key (see `plan`), or None if Python must take them."""
        if is_numeric_type(key):
            return _number_record(key, annotation, planner)
        if type(key) is tuple and key and isinstance(key[0], type) and issubclass(key[0], (tuple, list)):
            slot = planner.slot("")
            elements = b""
            for child, inner in zip(key[1:], element_annotations(annotation, key[1:]), strict=True):
                element = self.record(child, inner, planner)
                if element is None:
                    return None
                elements += element
            return plan.record(
                plan.GroupRecord,
                plan.GROUP,
                slot,
                elements,
                type=planner.reference(key[0]),
                count=len(key) - 1,
                hold=planner.hold() if issubclass(key[0], list) else 0,
            )
        return None

    def is_array_key(self, key: object) -> bool:
        """Return whether arguments of a key are arrays, which belong to a framework that may be working on a stream."""
        return False

    def introduce(self, engine: Engine, value: Any) -> None:
        """Register the type of an argument with native code, if it can read such arguments. Does nothing by default."""

    # -- learning ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        loading.prepare()

    def wait(self) -> None:
        loading.engine()

    def learn_compiled(self, compiled: CompiledFunction[Any], values: Iterable[object]) -> None:
        engine = loading.loaded()
        if engine is None:
            return
        plans = _plans_of(compiled)
        if plans.lessons >= _MAX_LESSONS:
            return
        plans.lessons += 1
        for value in values:
            self.introduce(engine, value)
        if not hasattr(compiled, "for_caller"):
            passed = [name for name in compiled.passed if name not in compiled.ambient]
            caller_plan = plans.plan(self, passed, compiled.executable.guards, exact=False)
            if caller_plan is not None:
                _install(engine)
                _look_at_devices(engine, compiled.target)
                compiled.for_caller = caller_plan

    def learn_jit(
        self, function: JitFunction[..., Any], specialization: Specialization, values: Iterable[object]
    ) -> None:
        engine = loading.loaded()
        if engine is None:
            return
        compiled, dependencies, weaker = specialization
        plans = _plans_of(compiled)
        moved = dependencies.moved and plans.count < _MAX_PLANS
        again = moved or (weaker and not plans.weaker)
        if (plans.lessons >= _MAX_LESSONS and not again) or not function.parameters.simple:
            return
        guards = choice_guards()
        if guards is None:
            return
        plans.lessons += 1
        for value in values:
            self.introduce(engine, value)
        if plans.plan_specialization(self, dependencies, weaker):
            _install(engine)
            _look_at_devices(engine, compiled.target)
            guards = [Guard(guarding.IS_ZERO, tracing.active), *guards]
            table = guarding.table(guards)
            key = target_key()
            before = getattr(function, "for_caller", ())
            earlier = before[3:] if before and before[2] == key else ()
            kept = [plans, *(candidate for candidate in earlier if candidate is not plans)][:_MAX_CANDIDATES]
            # of plans that match the same arguments the strongest comes first
            kept.sort(key=lambda candidate: -candidate.strength)
            addresses = [plan.address_of(candidate.specialization) for candidate in kept]
            words = plan.words([len(kept), plan.address_of(table), *addresses])
            function.for_caller = (words, (guards, table, plans), key, *kept)


class _Plans:
    """The plans of a compiled function."""

    def __init__(self, compiled: CompiledFunction[Any]) -> None:
        self.lessons = self.count = 0
        """From how many calls native code learned types of arguments, and how many plans were made."""
        self.specialization = b""
        """The plan for calls of the jit function that this was compiled from."""
        self.weaker = False
        """Whether that plan is also for arguments of which more is known than the code makes use of."""
        self.strength: int = compiled.strength
        self._compiled = compiled
        self._kept: list[Any] = []

    def plan_specialization(self, caller: NativeCaller, dependencies: Dependencies, weaker: bool) -> bool:
        """Make the plan `specialization`, which is valid while nothing has changed. Returns whether there is one."""
        if not self.specialization or dependencies.moved or (weaker and not self.weaker):
            self.count += 1
            self.weaker = self.weaker or weaker
            compiled = self._compiled
            guards = [*compiled.executable.guards, *dependencies.guards()]
            self.specialization = self.plan(caller, compiled.names, guards, exact=True) or self.specialization
        return bool(self.specialization)

    def plan(self, caller: NativeCaller, names: list[str], guards: Sequence[Guard], exact: bool) -> bytes | None:
        """Return a plan for calls that pass these parameters, or None if native code cannot read them."""
        compiled = self._compiled
        kinds = {p.kind for p in compiled.parameters.signature.parameters.values()}
        report = compiled.reporter()
        result = result_kind(compiled)
        if report is None or result is None:
            return None
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            return None
        planner = Planner(exact, compiled.target, compiled.written_slots, self.weaker)
        ambient = [name for name in compiled.ambient if name not in names]
        records = self._records(caller, names, ambient, planner)
        if records is None:
            return None
        interned = [sys.intern(name) for name in names]
        table = plan.words([id(name) for name in interned])
        guard_table = guarding.table(guards)
        head = plan.Plan(
            entry=compiled.executable.address,
            slots_bytes=max(compiled.slot_bytes, 8),
            count=len(names),
            record_count=len(names) + len(ambient),
            result=result,
            result_at=compiled.results_at,
            value=id(compiled.static_result),
            report=id(report),
            names=plan.address_of(table),
            guards=plan.address_of(guard_table),
            owner=id(compiled),
            held_bytes=planner.held_bytes,
        )
        plan_bytes = bytes(head) + records
        # the plan too: another thread may be in a call by it when the next one replaces it
        self._kept += [planner.keep, interned, table, guards, guard_table, report, plan_bytes]
        return plan_bytes

    def _records(self, caller: NativeCaller, names: list[str], ambient: list[str], planner: Planner) -> bytes | None:
        """Return the records of parameters, those of streams that are not passed last; None if one cannot be made."""
        compiled = self._compiled
        records = b""
        streams = list[int]()
        for name in [each for each in compiled.names if each in ambient or each in names] if ambient else names:
            if name in ambient:
                streams.append(planner.slot("Q"))
                continue
            if name in compiled.static:
                record = _static_record(compiled.static[name], planner)
            else:
                record = caller.record(compiled.keys[name], compiled.parameters.annotation(name), planner)
            if record is None:
                return None
            records += record
        if ambient:
            array = next((i for i, name in enumerate(names) if caller.is_array_key(compiled.keys.get(name))), None)
            if array is None:
                return None
            for slot in streams:
                records += plan.record(plan.ValueRecord, plan.AMBIENT, slot, value=array)
        return records


def _plans_of(compiled: CompiledFunction[Any]) -> _Plans:
    if compiled.learned is None:
        compiled.learned = _Plans(compiled)
    return compiled.learned


@functools.lru_cache(maxsize=1)
def _install(engine: Engine) -> None:
    """Let native code take calls; those it leaves come to the functions that were there before."""
    engine.add_numbers(Numeric, "_value")
    engine.install("compiled", CompiledFunction, "__call__", "for_caller", CompiledFunction._run_in_python)
    engine.install("jit", JitFunction, "__call__", "for_caller", JitFunction._run_in_python)


@functools.lru_cache(maxsize=8)
def _look_at_devices(engine: Engine, name: str) -> None:
    """Launch kernels on the device of the first array if there are several devices."""
    target = get_target(name)
    if target.several_devices():
        engine.look_at_devices(target.driver_function)


# --- records ---------------------------------------------------------------------------------------------------------


def _number_record(kind: type[Numeric], annotation: object, planner: Planner) -> bytes | None:
    """Return the record of a number. As in `ArgumentRules`, the annotation decides which Python types it accepts."""
    if not kind._struct_format:
        return None
    slot = planner.slot(number_format(kind))
    annotated = is_numeric_type(annotation)
    if not issubclass(kind, Integer):
        types = plan.FLOAT if kind is Float32 else 0
        if annotated or annotation is float:
            types = plan.INT | plan.BOOL | plan.FLOAT
        return plan.record(plan.RealRecord, plan.REAL, slot, types=types, typed=id(kind), bytes=kind.width // 8)
    types = plan.BOOL if kind is Boolean else plan.INT if kind in (Int32, Int64) else 0
    if annotated or (annotation is int and kind is Int32):
        types = plan.INT | plan.BOOL
    return plan.record(
        plan.IntegerRecord,
        plan.INTEGER,
        slot,
        types=types,
        typed=id(kind),
        least=max(kind.min, MIN64),
        greatest=min(kind.max, MAX64),
        hole=not annotated and kind is Int64,
    )


def _static_record(value: object, planner: Planner) -> bytes | None:
    """Return the record of an argument known while tracing; None if the object may change its value."""
    if type(value) is int and MIN64 <= value <= MAX64:
        return plan.record(plan.ValueRecord, plan.NUMBER, 0, value=value)
    if _is_immutable(value):
        return plan.record(plan.ValueRecord, plan.SAME, 0, value=planner.reference(value))
    return None


def _is_immutable(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    if isinstance(value, enum.Enum):
        met = Met()
        static_key(value, met)
        return not met.changeable
    numpy = packages.loaded("numpy")
    if numpy is not None and isinstance(value, (numpy.number, numpy.bool_)):
        return True
    return value is None or type(value) in (int, bool, float, str, bytes) or isinstance(value, type)


def result_kind(compiled: CompiledFunction[Any]) -> int | None:
    """Return what native code returns (`plan.NO_RESULT`, ...), or None if that needs Python."""
    if not compiled.has_results:
        return plan.NO_RESULT
    if not compiled.returns_number:
        return None
    kind = compiled.result_kinds[0]
    if kind.width == 1:
        return plan.TRUTH
    if kind.is_float:
        return plan.REAL32 if kind.width == 32 else plan.REAL64
    return (plan.SIGNED if kind.signed else plan.UNSIGNED) | kind.bytes << 8
