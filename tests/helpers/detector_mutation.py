"""The sanitizer's detector, broken on purpose: other machine code behind the functions that compiled kernels call.

Kernels are compiled once. They call each function of the detector by a pointer, which leads to the detector as it is or to
one of which a function was traced from a changed text. All share the state.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import ctypes
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kiln.native.functions import Function, Inline, Unit
from kiln.targets.cpu.runtime.parts import PARTS
from kiln.targets.cpu.sanitizer import detector as functions
from kiln.targets.cpu.sanitizer import library
from kiln.targets.cpu.sanitizer.state import detector
from kiln.targets.host import jit
from kiln.targets.host.lower import lower_library


class Mutation(NamedTuple):
    """A change of one function of a module of the sanitizer."""

    name: str
    module: str
    function: str
    old: str
    new: str


class Detectors:
    """The detector that kernels call now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.right = library.library()
        self.kept: list[Any] = []
        self.calls = jit.Library(*_calls())
        for variable in detector.variables:
            self.calls.addresses[variable.symbol] = self.right.addresses[variable.symbol]
        self.use(self.right)
        monkeypatch.setattr(library, "library", lambda: self.calls)

    def use(self, other: jit.Library) -> None:
        """Let kernels call the functions that a library has."""
        for function in detector.functions:
            if function.symbol in other.addresses:
                place = ctypes.c_uint64.from_address(self.calls.addresses[f"{function.symbol}.to"])
                place.value = other.addresses[function.symbol]

    @contextlib.contextmanager
    def broken(self, mutation: Mutation) -> Iterator[None]:
        """Let kernels call a detector with a mutation."""
        with changed(mutation, self.folder) as function:
            wrong = self._built([each for each in detector.functions if _reaches(each, function, set())])
        self.kept.append(wrong)
        self.use(wrong)
        try:
            yield
        finally:
            self.use(self.right)

    def _built(self, of: list[Any]) -> jit.Library:
        """Return functions of the detector as they are now, on the state of the right one."""
        unit = Unit.new()
        unit.trace(lambda: [unit.declare(function, own=True) for function in of])
        names = tuple(function.symbol for function in of)
        data = jit.emit_object(jit.optimize(lower_library(unit.module, "broken", names), 1), 1)
        others = {symbol: address for symbol, address in self.right.addresses.items() if symbol not in names}
        return jit.Library(data, names, imports=others, parts=PARTS)


def _reaches(function: Any, target: Any, seen: set[Any]) -> bool:
    """Whether a native function is another one or calls it, itself or by others."""
    if function is target:
        return True
    seen.add(function)
    codes = [function.function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    called = [function.function.__globals__.get(name) for code in codes for name in code.co_names]
    return any(
        _reaches(callee, target, seen)
        for callee in called
        if isinstance(callee, (Function, Inline)) and callee not in seen
    )


def _calls() -> tuple[bytes, tuple[str, ...]]:
    """Return code of functions that call what pointers lead to, and what it exports."""
    lines: list[str] = []
    names: list[str] = []
    for symbol, inputs, result in functions.functions().values():
        kinds = [f"i{width}" for width in inputs]
        out = f"i{result}" if result else "void"
        parameters = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds))
        lines += [
            f"@{symbol}.to = global ptr null",
            f"define {out} @{symbol}({parameters}) {{",
            f"  %to = load volatile ptr, ptr @{symbol}.to",
            f"  {'%r = ' * bool(result)}tail call {out} %to({parameters})",
            f"  ret {out} {'%r' if result else ''}".rstrip(),
            "}",
        ]
        names += [symbol, f"{symbol}.to"]
    return jit.emit_object(jit.optimize("\n".join(lines), 1), 1), tuple(names)


@contextlib.contextmanager
def changed(mutation: Mutation, folder: Path) -> Iterator[Any]:
    """Change the text of a function, which is given."""
    module = sys.modules[f"kiln.targets.cpu.sanitizer.{mutation.module}"]
    text = inspect.getsource(module)
    tree = ast.parse(text)
    own = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == mutation.function)
    lines = text.splitlines(keepends=True)
    body = "".join(lines[own.lineno - 1 : own.end_lineno])
    assert body.count(mutation.old) == 1, f"{mutation.name}: {mutation.function} has {body.count(mutation.old)} of it"
    changed = "".join(lines[: own.lineno - 1]) + body.replace(mutation.old, mutation.new)
    path = folder / f"{mutation.module}_{mutation.name.replace(' ', '_')}.py"
    path.write_text(changed)
    node = ast.parse(changed).body[-1]
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    names: dict[str, Any] = {}
    code = compile(
        ast.Module([node], []), str(path), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
    )
    exec(code, module.__dict__, names)  # noqa: S102
    function = getattr(module, mutation.function)
    right = function.function
    function.function = names[mutation.function]
    function.__dict__.pop("rewritten", None)
    try:
        yield function
    finally:
        function.function = right
        function.__dict__.pop("rewritten", None)


MUTATIONS = (
    # fences, ordered loads and stores
    Mutation("a fence acquires nothing", "memory_order", "fence", "acquire(thread.seen[level])", "pass"),
    Mutation("a fence acquires at every scope", "memory_order", "fence", "range(widest + 1)", "range(u32(LEVELS))"),
    Mutation("a fence releases nothing", "memory_order", "fence", "    remember(thread, widest)\n", ""),
    Mutation(
        "a fence releases at every scope",
        "memory_order",
        "fence",
        "remember(thread, widest)",
        "remember(thread, u32(GPU))",
    ),
    Mutation("a relaxed load acquires", "memory_order", "learn", "order & 1 != 0", "order & 1 != 2"),
    Mutation(
        "an acquire looks at every scope",
        "memory_order",
        "is_seen",
        "level <= lesser(scope, st.widest)",
        "level <= st.widest",
    ),
    Mutation(
        "an acquire takes what another CTA released to its own",
        "memory_order",
        "is_seen",
        "entry.of[level] == blocks_of(level, st.group, st.tid)",
        "st.active != 0",
    ),
    Mutation(
        "an update ends what was released before",
        "memory_order",
        "atomic",
        "                clock_join(clock_, entry.released[level])\n",
        "",
    ),
    Mutation(
        "a relaxed write releases what no fence saw",
        "locations",
        "released",
        "        if explicit:",
        "        if level <= scope:",
    ),
    Mutation("a release counts at every scope", "locations", "released", "level <= scope and", "level <= GPU and"),
    Mutation(
        "a delayed store releases nothing",
        "store_buffer",
        "atomic_store",
        "delayed.released[level] = released(level, widest, explicit)",
        "delayed.released[level] = None",
    ),
    Mutation("a cluster is the GPU", "locations", "in_scope", "if scope >= GPU:", "if scope >= CLUSTER:"),
    Mutation("the other thread's scope is not asked", "shadow", "check_scopes", "lesser(scope, theirs)", "scope"),
    Mutation(
        "a barrier is no fence", "memory_order", "fenced_barrier", "clock.unfenced < LEVELS", "clock.unfenced < 0"
    ),
    Mutation(
        "a barrier is a fence if the last thread fenced",
        "memory_order",
        "arrives_fenced",
        "raise_to(ref(clock).unfenced, LEVELS - state.place.current.fenced)",
        "clock.unfenced = LEVELS - state.place.current.fenced",
    ),
    Mutation("a fence is one for later accesses, too", "shadow", "check_access", "st.current.fenced = 0", "pass"),
    # barriers
    Mutation("a barrier publishes nothing", "barriers", "barrier", "        release(slot.clock)", "        pass"),
    Mutation("a barrier shows nothing", "barriers", "passed", "        acquire(clock)\n", ""),
    Mutation("a meeting of lanes publishes nothing", "barriers", "meet", "            release(slot.clock)\n", ""),
    Mutation("a cluster barrier shows nothing", "barriers", "passed_cluster", "        acquire(clock)\n", ""),
    Mutation(
        "a relaxed arrival at a cluster barrier releases", "barriers", "barrier", "if mode == 3:", "if mode == 4:"
    ),
    Mutation(
        "a relaxed arrival at a cluster barrier needs no cluster fence",
        "barriers",
        "barrier",
        "release_into(slot.clock, thread.fences[CLUSTER].base, ref(thread.fences[CLUSTER]).own)",
        "release_into(slot.clock, thread.fences[0].base, ref(thread.fences[0]).own)",
    ),
    # mbarriers
    Mutation(
        "a wait is for the other phase",
        "mbarriers",
        "mbarrier_waited",
        "acquire(entry.published[phase & 1])",
        "acquire(entry.published[(phase & 1) ^ 1])",
    ),
    Mutation(
        "an arrival releases nothing", "mbarriers", "mbarrier_arrive", "        release(entry.local)", "        pass"
    ),
    Mutation(
        "a relaxed arrival releases",
        "mbarriers",
        "mbarrier_arrive",
        "elif how == 0 and arrivals != 0:",
        "elif how <= 1 and arrivals != 0:",
    ),
    Mutation(
        "a relaxed arrival needs no cluster fence",
        "mbarriers",
        "mbarrier_arrive",
        "release_into(entry.local, thread.fences[needed].base, ref(thread.fences[needed]).own)",
        "release_into(entry.local, thread.fences[0].base, ref(thread.fences[0]).own)",
    ),
    Mutation("a relaxed wait shows writes", "mbarriers", "mbarrier_waited", "if relaxed == 0:", "if relaxed != 2:"),
    Mutation(
        "a relaxed wait says nothing",
        "mbarriers",
        "mbarrier_waited",
        "            acquire_over(entry.published[phase & 1])\n",
        "",
    ),
    Mutation(
        "a fence after a relaxed wait shows nothing",
        "mbarriers",
        "mbarrier_waited",
        "            see(ref(thread).seen + CTA, entry.published[phase & 1])\n",
        "",
    ),
    Mutation("what is over is visible", "clocks", "section_over", "section + st.over_section if", "section if"),
    # asynchronous copies
    Mutation(
        "bytes complete nothing",
        "mbarriers",
        "mbarrier_arrive",
        "st.bulk_slot], st.bulk_phase)",
        "st.bulk_slot], u32(0))",
    ),
    Mutation(
        "bytes of all phases are alike",
        "mbarriers",
        "bulk",
        "st.bulk_phase = entry.phases + 1",
        "st.bulk_phase = u32(1)",
    ),
    Mutation(
        "copies are not over when they arrive",
        "mbarriers",
        "mbarrier_arrive",
        "raise_to(ref(numbers(entry.local))[engine * st.threads + st.tid], epoch)",
        "pass",
    ),
    Mutation("a wait for groups is for all of them", "mbarriers", "waited", "(count - left - 1)", "(count - 1)"),
    Mutation("a wait for groups leaves one more", "mbarriers", "waited", "(count - left - 1)", "(count - left - 2)"),
    Mutation(
        "a wait for groups is for what is not committed",
        "mbarriers",
        "waited",
        "thread.ring[engine * RING + ((count - left - 1) & (RING - 1))]",
        "thread.epoch[engine]",
    ),
    Mutation(
        "a commit begins no group",
        "mbarriers",
        "commit",
        "thread.epoch[engine] = epoch + 1",
        "thread.epoch[engine] = epoch",
    ),
    # proxies
    Mutation(
        "no proxy needs a fence",
        "clocks",
        "ordered",
        "index = tid + n * (st.engines + (view - 1) * GENERIC)",
        "index = tid",
    ),
    Mutation(
        "a proxy fence is of the other space",
        "memory_order",
        "see_more",
        "(IN_SHARED, u64(0), first, n * GENERIC)",
        "(IN_SHARED, u64(0), first + n * GENERIC, n * GENERIC)",
    ),
    Mutation(
        "a proxy fence is about its own thread",
        "memory_order",
        "view",
        "see_more(numbers(joined), u64(st.threads), whose)",
        "pass",
    ),
    Mutation(
        "a proxy fence is about other threads",
        "memory_order",
        "view",
        "see_more(ref(thread).own, u64(1), whose)",
        "pass",
    ),
    Mutation(
        "a proxy fence leaves out cp.async",
        "memory_order",
        "see_more",
        "(IN_SHARED, u64(0), first, n * GENERIC)",
        "(IN_SHARED, u64(0), first, n)",
    ),
    # WGMMAs
    Mutation(
        "a wait for WGMMAs is one of the first thread",
        "wgmma",
        "wgmma_waited",
        "        learn(WGMMA * st.threads + leader_of(st), epoch)",
        "        pass",
    ),
    # cells
    Mutation(
        "a read replaces any other",
        "shadow",
        "replaceable",
        "mine or ordered(read.group, read.who & WHO, read.clock, 0)",
        "st.active != 0",
    ),
    Mutation(
        "a read needs order as a write",
        "shadow",
        "check_readers",
        "not ordered(reader.group, who, reader.clock, OVER)",
        "not ordered(reader.group, who, reader.clock, 0)",
    ),
    Mutation(
        "atomics race with no atomics",
        "shadow",
        "check_scopes",
        "if not in_scope(",
        "if scope == SYSTEM + 1 and not in_scope(",
    ),
)
