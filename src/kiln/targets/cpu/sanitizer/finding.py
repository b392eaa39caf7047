"""Findings in words: the detector's records with names, coordinates and source lines."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from ....base_dsl import sanitizing
from ....base_dsl.diagnostics import Span, warn_at
from ....hardware.engines import ENGINES
from ..faults import TensorMemoryFault
from ..runtime import launch_settings
from ..runtime.deadlock_report import DeadlockFault
from ..runtime.parts import seed_variable
from ..runtime.records import Sizes
from . import state as native
from .device_messages import Sides, explain_devices
from .program_memory import Argument, SanitizedSite, layout_leaves, swizzled_layout
from .report_facts import ReportFacts
from .rule_messages import Case, Triple, explain, triple


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something wrong that an instrumented program did. `other_*` is the other side, where there is one."""

    kind: str
    """"race", "memory", "sync" or "numeric"."""
    rule: str
    """Which rule of the kind was broken, in a word."""
    message: str
    hint: str
    kernel: str
    span: Span | None
    calls: tuple[Span, ...]
    other_span: Span | None
    block: Triple
    thread: Triple
    other_block: Triple | None
    other_thread: Triple | None
    space: str
    """"shared", "global", "tensor", or "" where it is about no memory."""
    tensor: str
    coordinate: tuple[int, ...] | None
    offset: int | None
    """Bytes from the start of the tensor or allocation."""
    count: int
    """How often it happened at this pair of places."""
    notes: tuple[tuple[Span, str], ...] = ()
    iteration: int | None = None
    """The iteration of the innermost dynamic loop around the access, counted from 0; None outside loops."""

    @property
    def page(self) -> str:
        """The page of the knowledge base about it; empty if there is none."""
        if self.rule == "bounds":
            return {"global": "zeros-by-predicate", "": "registers-past-their-end"}.get(self.space, "")
        if self.rule == "uninitialized" and self.space != "shared":
            return ""  # registers and tensor memory lack a value, not a barrier
        return _PAGES.get(self.rule, "")

    def __str__(self) -> str:
        lines = [f"{self.span}: {self.message}", self.span.snippet()] if self.span else [self.message]
        return "\n".join(line for line in [*lines, *self._explanation()] if line)

    def _explanation(self) -> list[str]:
        lines = [line for span, text in self.notes for line in (f"{span}: note: {text}", span.snippet())]
        return [*lines, f"help: {self.hint}"] if self.hint else lines

    def warn(self, footer: str = "") -> None:
        """Show the finding as a warning at the kernel's line, which Python adds to the text."""
        page = f"more: kiln kb show {self.page}" if self.page else ""
        text = "\n".join(line for line in [self.message, *self._explanation(), page, footer] if line)
        warn_at(self.span, text, _warned)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        record = dataclasses.asdict(self)
        record["severity"] = "warning" if self.rule in native.WARNINGS else "error"
        for name in ("span", "other_span"):
            span = getattr(self, name)
            record[name] = None if span is None else {"file": span.filename, "line": span.line}
        record["calls"] = [{"file": span.filename, "line": span.line} for span in self.calls]
        del record["notes"]
        return record


_warned: dict[Any, int] = {}
"""Warnings that were shown: Python shows each once."""
_PAGES = {
    **dict.fromkeys(("write-read", "read-write", "write-write", "uninitialized"), "missing-barrier"),
    "proxy": "no-fence-before-the-store",
    "unfenced": "no-fence-before-wgmma",
    "in-flight": "accumulators-touched-in-flight",
    "swizzle": "two-swizzles-on-one-tile",
    "mbarrier-bytes": "bytes-of-one-operand",
    **dict.fromkeys(("barrier-exited", "other-way", "lanes-exited"), "early-return-before-barrier"),
    **dict.fromkeys(("block-exited", "block-started"), "remote-memory-of-a-block"),
    "copy-unseen": "wait-one-group-less",
}
"""Pages of the knowledge base by rule."""
_OF_EXITS = ("barrier-exited", "lanes-exited")
"""Rules that a thread which a fault of tensor memory has ended breaks, too."""
_OUTSIDE = ("bounds", "index-overflow")
_PLAIN_RULES = (*_OUTSIDE, "read-only", "alignment")
"""Rules of launches that are checked by default: an access that breaks one is not made, or made up."""
_MILD_BY_DEFAULT = ("uninitialized", "barrier-exited")
"""Rules that launches checked by default warn of: kernels read shared memory for rows past the end, without effect."""
_FENCE_AFTER_STORE = (
    "a GPU may delay a store past later loads of its thread: put a sequentially consistent fence between the two, in each "
    'thread that does so: cute.arch.inline_ptx("fence.sc.gpu;")'
)
_TRIED_CALLS = 2
"""The first calls of a compiled function are tried under several schedules."""


def watched(call: Callable[[int], None], sanitizer: ReportFacts) -> Callable[[int], None]:
    """Return the call of an instrumented executable: what was found is delivered when it returns or fails."""
    from . import several
    from .library import lock, state

    calls = 0

    def run(address: int) -> None:
        nonlocal calls
        if sanitizing.DEVICES in sanitizer.kinds:
            failure, findings = several.watch(call, address, sanitizer)
        else:
            failure, findings = alone(address)
        say(failure, findings, sanitizer)

    def alone(address: int) -> tuple[Exception | None, list[Finding]]:
        nonlocal calls
        with lock:
            launch_settings.follow()  # before the seed is read, which is set back afterwards
            detector = state()
            detector.findings_count = detector.overflow = 0
            seed = seed_variable()
            detector.seed = ctypes.addressof(seed)
            detector.tried = 1
            detector.once = 0
            # a seed that somebody chose is the one that is meant
            detector.further = native.FURTHER if calls < _TRIED_CALLS and seed.value == 0 else 0
            calls += 1
            chosen = seed.value
            failure: Exception | None = None
            try:
                call(address)
            except Exception as caught:
                failure = caught
            finally:
                seed.value = chosen
                detector.active = 0
                detector.recording = 0
            reasons = [why for bit, why in enumerate(native.ONCE) if detector.once >> bit & 1]
            sanitizing.tried(detector.tried, [*reasons, *sanitizer.once, *["KILN_CPU_SEED names it"] * bool(chosen)])
            records = [detector.findings[i] for i in range(detector.findings_count)]
            return failure, once_each([in_words(record, sanitizer) for record in records], records)

    run.__dict__["call"] = call
    return run


def say(failure: Exception | None, findings: list[Finding], sanitizer: ReportFacts) -> None:
    """Deliver the findings of a call that has ended, or failed."""
    request = sanitizing.request()
    unasked = not sanitizer.plain and request is None
    for warning in [finding for finding in findings if _is_mild(finding, sanitizer)]:
        findings.remove(warning)
        sanitizer.outside |= warning.rule in _OUTSIDE
        if not sanitizer.silent:
            warning.warn(sanitizing.OFF if sanitizer.plain else "")
        if not sanitizer.plain:
            (request or sanitizing.unasked).warnings.append(warning)
    if isinstance(failure, DeadlockFault) and "sync" in sanitizer.kinds:
        findings.append(_deadlock(failure))
    if isinstance(failure, TensorMemoryFault):
        findings = [finding for finding in findings if finding.rule not in _OF_EXITS]
    # an index that overflowed is out of bounds; what nobody has written, a race has not written yet
    findings.sort(key=_cause)
    if failure is not None and not findings:
        sanitizing.unasked.faults += unasked
        raise failure
    if sanitizer.plain:
        findings = [finding for finding in findings if finding.rule in _PLAIN_RULES]
        if failure is not None and not findings:
            raise failure
    sanitizing.deliver(findings, failure, sanitizer.plain)
    if failure is not None and not isinstance(failure, DeadlockFault):
        raise failure


def _is_mild(finding: Finding, sanitizer: ReportFacts) -> bool:
    """Return whether a finding is a warning. By the checks that are on by default more are than by the sanitizer."""
    if finding.rule in native.WARNINGS:
        return True
    return sanitizer.plain and (finding.rule in _MILD_BY_DEFAULT or (finding.rule in _OUTSIDE and not sanitizer.strict))


def once_each(findings: list[Finding], records: Sequence[native.Finding]) -> list[Finding]:
    """Return the findings without out-of-bounds accesses that were already found by their coordinates."""
    by_coordinate = [bool(record.modes) for record in records]

    def place(f: Finding) -> tuple[Any, ...]:
        return f.kernel, f.span, f.space, f.tensor if f.space else ""

    places = {place(f) for f, by in zip(findings, by_coordinate, strict=True) if by}
    return [
        f for f, by in zip(findings, by_coordinate, strict=True) if by or f.rule != "bounds" or place(f) not in places
    ]


def _cause(finding: Finding) -> int:
    """Return a sort key that puts causes before their consequences."""
    rules = ("index-overflow", "bounds", "sync", "scope", "race", "mbarrier-phase", "deadlock", "memory", "numeric")
    return rules.index(finding.rule if finding.rule in rules else finding.kind)


# --- who and where ---------------------------------------------------------------------------------------------------


def _place(sizes: Sizes, group: int, tid: int) -> tuple[Triple, Triple, int]:
    """Return (block, thread, engine) of an identity: the engine is 0 for a thread itself."""
    grid = list(sizes.grid)
    block = list(sizes.block)
    cluster = list(sizes.cluster)
    per_block = block[0] * block[1] * block[2]
    threads = max(1, per_block * sizes.group)
    engine, tid = divmod(tid, threads)
    rank, thread = divmod(tid, per_block)
    volume = cluster[0] * cluster[1] * cluster[2]
    number = group * max(1, sizes.group // volume) + rank // volume
    index: list[int] = []
    within = rank % volume
    for g, c in zip(grid, cluster):
        clusters = g // c
        index.append(number % clusters * c + within % c)
        number = number // clusters
        within = within // c
    x = thread % block[0]
    y = thread // block[0]
    return (index[0], index[1], index[2]), (x, y % block[1], y // block[1]), engine


def _who(block: Triple, thread: Triple, engine: int = 0, of: Triple | None = None, kernel: str = "") -> str:
    text = ENGINES[engine].of_thread + f"thread {triple(thread)}"
    if kernel:
        return f"{text} of block {triple(block)} of {kernel}, launched before,"
    return text if of == block else f"{text} of block {triple(block)}"


def writer(facts: ReportFacts, write: native.LastWrite) -> str:
    """Return who wrote a word last, in words."""
    kernel = facts.kernels[write.kernel].name
    if not kernel:
        return f"the host of rank {write.device}"
    block, thread, engine = _place(write.sizes, write.group, write.tid)
    span = facts.sites[write.site].span
    where = f", {span}" if span is not None else ""
    return f"{_who(block, thread, engine)} of {kernel} on device {write.device}{where}"


def _coordinate(argument: Argument, offset: int, leaves: list[int], beyond: bool = False) -> tuple[int, ...] | None:
    """Return the coordinate of the element at a byte offset in a tensor; with `beyond` it may be past the end."""
    swizzle, layout = swizzled_layout(argument.layout)
    parts = layout_leaves(layout)
    if parts is None:
        return None
    dynamic = iter(leaves)
    shape, stride = ([next(dynamic, 0) if leaf[0] == "?" else int(leaf) for leaf in part] for part in parts)
    index = offset * 8 // max(1, argument.element_bits)
    if swizzle is not None and index >= 0:
        index = _swizzled(index, *swizzle)  # its own inverse
    coordinate = [0] * len(shape)
    left = index
    for mode in sorted(range(len(shape)), key=lambda m: (-stride[m], shape[m] == 1)):
        if stride[mode] > 0 and shape[mode] > 1:
            most = shape[mode] - 1 if not beyond or any(coordinate) else left
            coordinate[mode] = min(left // stride[mode], most) if left >= 0 else 0
            left -= coordinate[mode] * stride[mode]
    return tuple(coordinate) if left == 0 else None


def _swizzled(offset: int, bits: int, base: int, shift: int) -> int:
    source = offset & ((1 << bits) - 1) << (base + max(0, shift))
    return offset ^ (source >> shift if shift >= 0 else source << -shift)


class _Memory:
    """The memory a finding is about."""

    def __init__(self, record: native.Finding, site: SanitizedSite, sanitizer: ReportFacts) -> None:
        self.space = ""
        self.tensor = site.memory
        self.text = site.memory or "memory"
        self.coordinate: tuple[int, ...] | None = None
        self.offset: int | None = None
        bits = site.element_bits or 8
        if record.modes:
            self.space = native.SPACES.get(record.space, "")
            self.coordinate = tuple(record.place[: record.modes])
            place = f"[{', '.join(map(str, self.coordinate))}]"
            self.text = (site.memory or "a tensor") + place
            argument = next(
                (a for a in sanitizer.kernels[record.kernel].arguments if a and a.name == site.memory), None
            )
            leaves = None if argument is None else layout_leaves(argument.layout)
            if leaves is not None and len(leaves[0]) != record.modes:
                self.text = f"{place} of the tensor that {site.memory} is cut from"
        elif record.space == native.SHARED:
            self.space = "shared"
            kernel = sanitizer.kernels[record.kernel]
            self.offset = record.offset - (site.start if site.start >= 0 else kernel.dynamic_start)
            self.tensor = site.memory or "shared memory"
            self.text = f"{self.tensor}, {self._element(bits, site)}"
            if site.what.startswith("mbarrier"):
                self.offset = record.offset
                self.text = site.memory or f"byte {record.offset} of shared memory"
            viewed = kernel.view_at(record.offset)
            named = native.RULES[record.rule] == "bounds" or (site.memory and site.what.startswith("mbarrier"))
            if viewed is not None and not named:
                view, inside = viewed
                self.tensor = view.tensor.name
                self.offset = inside
                self.coordinate = _coordinate(view.tensor, inside, [])
                if self.coordinate is not None:
                    self.text = f"{self.tensor}[{', '.join(map(str, self.coordinate))}]"
        elif record.space == native.TENSOR:
            self.space = "tensor"
            self.tensor = "tensor memory"
            self.offset = record.offset
            lane = record.offset >> 16
            column = record.offset & 0xFFFF
            self.text = f"tensor memory, lanes {lane} to {lane + native.TENSOR_LANES - 1} of column {column}"
        elif record.space == native.GLOBAL:
            self.space = "global"
            self.text = f"global memory at {record.address & (1 << 64) - 1:#x}"
            if record.object:
                argument = sanitizer.kernels[record.kernel].arguments[record.object - 1]
                assert argument is not None
                self.tensor = argument.name
                self.offset = record.offset
                outside = native.RULES[record.rule] == "bounds"
                self.coordinate = _coordinate(argument, record.offset, list(record.known.leaves), outside)
                if self.coordinate is not None:
                    self.text = f"{argument.name}[{', '.join(map(str, self.coordinate))}]"
                else:
                    self.text = f"{argument.name}, {self._element(argument.element_bits, site)}"

    def _element(self, bits: int, site: SanitizedSite) -> str:
        assert self.offset is not None
        if bits >= 8 and self.offset * 8 % bits == 0:
            return f"element {self.offset * 8 // bits} ({site.element})"
        return f"byte {self.offset}"


# --- in words --------------------------------------------------------------------------------------------------------


def in_words(record: native.Finding, sanitizer: ReportFacts, sides: Sides | None = None) -> Finding:
    """Return a finding in words; `sides` where the program runs on several devices."""
    rule = native.RULES[record.rule]
    kind = native.KIND_OF_RULE[rule]
    site = sanitizer.sites[record.site]
    of_other = sanitizer if sides is None else sides.other
    other_site = of_other.sites[record.other_site]
    block, thread, _ = _place(record.sizes, record.group, record.tid)
    other_block, other_thread, engine = _place(record.other_sizes, record.other_group, record.other_tid)
    memory = _Memory(record, site, sanitizer)
    two_sided = kind == "race" or other_site is not site
    kernel = sanitizer.kernels[record.kernel].name
    before = of_other.kernels[record.other_kernel].name if record.before else ""
    me = _who(block, thread)
    if sides is not None and record.before:
        they = sides.on_other_device(_who(other_block, other_thread, engine), before)
    else:
        they = _who(other_block, other_thread, engine, of=block, kernel=before)
    if sides is not None:
        me = sides.on_device(me, kernel)
    case = Case(
        rule,
        (record.extra[0], record.extra[1]),
        site,
        other_site,
        me,
        they,
        block,
        thread,
        other_block,
        other_thread,
        engine,
        bool(record.before),
        memory.space,
        memory.tensor,
        memory.text if sides is None or not record.device else sides.memory(memory.text, record.address),
        record,
        sanitizer.kernels[record.kernel].reach(record.extra[0])
        if rule == "bounds" and record.space == native.SHARED
        else 0,
    )
    text, hint, note = explain(case) if sides is None else explain_devices(case)
    times = f" ({record.count} times)" if record.count > 1 else ""
    if record.unseen_store:
        hint = _FENCE_AFTER_STORE if record.schedule else f"{hint}; or {_FENCE_AFTER_STORE}"
    if record.schedule:
        hint = f"{hint}; found under another schedule, which KILN_CPU_SEED={record.schedule} repeats"
    notes: list[tuple[Span, str]] = []
    if two_sided and other_site.span is not None and note:
        notes.append((other_site.span, note))
    if kind == "race" and record.narrow:
        arrival = sanitizer.sites[record.narrow - 1]
        notes += [(arrival.span, 'this arrival has scope "cta"')] if arrival.span is not None else []
    if record.unseen_store:
        store = sanitizer.sites[record.unseen_store - 1]
        load = sanitizer.sites[record.unseen_load]
        notes += [(store.span, "this store was delayed")] if store.span is not None else []
        notes += [(load.span, "this load did not see it")] if load.span is not None else []
    if site.loop is not None:
        notes.append((site.loop, f"{me} is in iteration {record.iteration} of this loop, counted from 0"))
    return Finding(
        kind,
        rule,
        f"{kind} in {f'kernel {kernel}' if kernel else 'the host'}: {text}{times}",
        hint,
        kernel,
        site.span,
        site.calls,
        other_site.span if two_sided else None,
        block,
        thread,
        other_block if two_sided else None,
        other_thread if two_sided else None,
        memory.space,
        memory.tensor,
        memory.coordinate,
        memory.offset,
        record.count,
        tuple(notes),
        record.iteration if site.loop is not None else None,
    )


def _deadlock(failure: DeadlockFault) -> Finding:
    """Return a deadlock, which the target itself detected, as a finding."""
    other = failure.notes[0][0] if failure.notes else None
    match = re.match(r"deadlock in kernel (\S+):", failure.message)
    return Finding(
        "sync",
        "deadlock",
        failure.message,
        failure.hint,
        match.group(1) if match else "",
        failure.span,
        tuple(failure.calls),
        other,
        (0, 0, 0),
        (0, 0, 0),
        None,
        None,
        "",
        "",
        None,
        None,
        1,
        tuple(failure.notes),
    )
