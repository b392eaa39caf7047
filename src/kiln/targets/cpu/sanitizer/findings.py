"""Findings in words: what the detector recorded, with names, coordinates and source lines."""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

from ....base_dsl import sanitizing
from . import state as native
from .instrument import SanitizedSite, layout_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....base_dsl.diagnostics import Span
    from .instrument import Argument, Instrumentation

Triple = tuple[int, int, int]


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
    """"shared", "global" or "" where it is about no memory."""
    tensor: str
    coordinate: tuple[int, ...] | None
    offset: int | None
    """Bytes from the start of the tensor or allocation."""
    count: int
    """How often it happened at this pair of places."""
    notes: tuple[tuple[Span, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.span}: {self.message}" if self.span else self.message]
        if self.span:
            lines.append(self.span.snippet())
        for span, text in self.notes:
            lines += [f"{span}: note: {text}", span.snippet()]
        if self.hint:
            lines.append(f"help: {self.hint}")
        return "\n".join(line for line in lines if line)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        made = dataclasses.asdict(self)
        for name in ("span", "other_span"):
            span = getattr(self, name)
            made[name] = None if span is None else {"file": span.filename, "line": span.line}
        made["calls"] = [{"file": span.filename, "line": span.line} for span in self.calls]
        del made["notes"]
        return made


def watched(call: Callable[[int], None], sanitizer: Instrumentation) -> Callable[[int], None]:
    """The call of an instrumented executable: what was found is delivered when it returns or fails."""
    from .library import lock, state

    def run(address: int) -> None:
        with lock:
            detector = state()
            detector.findings_count = detector.overflow = 0
            failure: Exception | None = None
            try:
                call(address)
            except Exception as caught:
                failure = caught
            detector.active = 0
            found = [_words(detector.findings[i], sanitizer) for i in range(detector.findings_count)]
        # causes first: an index that overflowed is out of bounds; what nobody has written, a race has not written yet
        found.sort(
            key=lambda finding: (
                finding.rule != "index-overflow",
                _ORDER.index(finding.kind),
                finding.rule == "uninitialized",
            )
        )
        if failure is not None and not found:
            raise failure
        sanitizing.deliver(found, failure)
        if failure is not None:
            raise failure

    run.__dict__["call"] = call
    return run


_ORDER = ("sync", "race", "memory", "numeric")


# --- who and where ---------------------------------------------------------------------------------------------------


def _place(sizes: list[int], group: int, tid: int) -> tuple[Triple, Triple, int]:
    """(block, thread, engine) of an identity: the engine is 0 for a thread itself."""
    grid, block, cluster = sizes[:3], sizes[3:6], sizes[6:9]
    per_block = block[0] * block[1] * block[2]
    threads = max(1, per_block * sizes[11])
    engine, tid = divmod(tid, threads)
    rank, thread = divmod(tid, per_block)
    volume = cluster[0] * cluster[1] * cluster[2]
    number = group * max(1, sizes[11] // volume) + rank // volume
    index: list[int] = []
    within = rank % volume
    for g, c in zip(grid, cluster):
        clusters = g // c
        index.append(number % clusters * c + within % c)
        number, within = number // clusters, within // c
    x, y = thread % block[0], thread // block[0]
    return (index[0], index[1], index[2]), (x, y % block[1], y // block[1]), engine


def _triple(value: Triple) -> str:
    """(5, 0, 0) as 5, and so on: what is zero at the end is left out."""
    if not value[1] and not value[2]:
        return str(value[0])
    return str(value if value[2] else value[:2])


def _who(block: Triple, thread: Triple, engine: int = 0, of: Triple | None = None) -> str:
    text = ("", "an asynchronous copy of ", "a bulk copy of ")[min(engine, 2)] + f"thread {_triple(thread)}"
    if of is None:
        return f"{text} of block {_triple(block)}"
    return text if of == block else f"{text} of block {_triple(block)}"


def _coordinate(argument: Argument, offset: int, leaves: list[int]) -> tuple[int, ...] | None:
    """The coordinate of the element at a byte offset from a tensor's first one."""
    parts = layout_leaves(argument.layout)
    if parts is None:
        return None
    dynamic = iter(leaves)
    shape, stride = ([next(dynamic, 0) if leaf[0] == "?" else int(leaf) for leaf in part] for part in parts)
    index = offset * 8 // max(1, argument.element_bits)
    coordinate = [0] * len(shape)
    left = index
    for mode in sorted(range(len(shape)), key=lambda m: (-stride[m], shape[m] == 1)):
        if stride[mode] > 0 and shape[mode] > 1:
            coordinate[mode] = min(left // stride[mode], shape[mode] - 1) if left >= 0 else 0
            left -= coordinate[mode] * stride[mode]
    return tuple(coordinate) if left == 0 else None


class _Memory:
    """The memory a finding is about."""

    def __init__(self, record: native.Finding, site: SanitizedSite, sanitizer: Instrumentation) -> None:
        self.space, self.tensor, self.text = "", site.memory, site.memory or "memory"
        self.coordinate: tuple[int, ...] | None = None
        self.offset: int | None = None
        bits = site.element_bits or 8
        if record.space == native.SHARED:
            self.space = "shared"
            kernel = sanitizer.kernels[record.kernel]
            self.offset = record.offset - (site.start if site.start >= 0 else kernel.dynamic_start)
            self.tensor = site.memory or "shared memory"
            self.text = f"{self.tensor}, {self._element(bits, site)}"
            found = kernel.view_at(record.offset)
            if found is not None and native.RULES[record.rule] != "bounds":
                view, inside = found
                self.tensor, self.offset = view.tensor.name, inside
                self.coordinate = _coordinate(view.tensor, inside, [])
                if self.coordinate is not None:
                    self.text = f"{self.tensor}[{', '.join(map(str, self.coordinate))}]"
        elif record.space == native.GLOBAL:
            self.space = "global"
            self.text = f"global memory at {record.address & (1 << 64) - 1:#x}"
            if record.object:
                argument = sanitizer.kernels[record.kernel].arguments[record.object - 1]
                assert argument is not None
                self.tensor, self.offset = argument.name, record.offset
                self.coordinate = _coordinate(argument, record.offset, list(record.known.leaves))
                if self.coordinate is not None:
                    self.text = f"{argument.name}[{', '.join(map(str, self.coordinate))}]"
                else:
                    self.text = f"{argument.name}, {self._element(argument.element_bits, site)}"

    def _element(self, bits: int, site: SanitizedSite) -> str:
        assert self.offset is not None
        if bits >= 8 and self.offset * 8 % bits == 0:
            return f"element {self.offset * 8 // bits} ({site.element})"
        return f"byte {self.offset}"


# --- the rules in words ----------------------------------------------------------------------------------------------


def _words(record: native.Finding, sanitizer: Instrumentation) -> Finding:
    rule = native.RULES[record.rule]
    kind = native.KIND_OF_RULE[rule]
    site, other_site = sanitizer.sites[record.site], sanitizer.sites[record.other_site]
    sizes = list(record.sizes)
    block, thread, _ = _place(sizes, record.group, record.tid)
    other_block, other_thread, engine = _place(sizes, record.other_group, record.other_tid)
    memory = _Memory(record, site, sanitizer)
    two_sided = kind == "race" or other_site is not site
    me = _who(block, thread)
    other = _who(other_block, other_thread, engine, of=block)
    kernel = sanitizer.kernels[record.kernel].name
    times = f" ({record.count} times)" if record.count > 1 else ""
    text, hint, note = _explain(
        rule, record, site, other_site, memory, me, other, block, thread, other_block, other_thread, engine
    )
    notes = ()
    if two_sided and other_site.span is not None and note:
        notes = ((other_site.span, note),)
    return Finding(
        kind, rule, f"{kind} in kernel {kernel}: {text}{times}", hint, kernel, site.span, site.calls,
        other_site.span if two_sided else None, block, thread, other_block if two_sided else None,
        other_thread if two_sided else None, memory.space, memory.tensor, memory.coordinate, memory.offset, record.count,
        notes,
    )  # fmt: skip


_DONE = {"read": "read", "write": "wrote"}


def _explain(
    rule: str, record: native.Finding, site: SanitizedSite, other_site: SanitizedSite, memory: _Memory, me: str, other: str,
    block: Triple, thread: Triple, other_block: Triple, other_thread: Triple, engine: int,
) -> tuple[str, str, str]:  # fmt: skip
    """(what happened, what to do, what to say at the other place)."""
    extra = [record.extra[0], record.extra[1]]
    if rule in ("read-write", "write-read", "write-write", "atomic", "proxy"):
        return _explain_race(
            rule, site, other_site, memory, me, other, block, thread, other_block, other_thread, engine
        )
    if rule == "bounds":
        return _explain_bounds(record, site, memory, me)
    if rule == "alignment":
        return (
            f"{site.what} of {record.bytes} bytes by {me} at an address that is no multiple of {extra[0]}: {memory.text}",
            "make the address a multiple of the access's size, or access fewer elements at a time",
            "",
        )
    if rule == "uninitialized" and extra[1]:
        return _explain_unset(extra[0], site, other_site, memory, me)
    if rule == "uninitialized":
        return (
            f"{me} reads {memory.text}, which nobody has written",
            "write it first, and let the reader wait for that",
            "",
        )
    if rule == "read-only":
        return f"{me} writes {memory.text}, which is read-only", "pass a tensor that may be written", ""
    if rule == "divergent":
        return (
            f"{me} arrives at barrier {extra[0]} here while other threads of its warp are at another one",
            "all threads of a warp must reach the same barrier: move it out of the branch",
            "the others arrived here",
        )
    if rule == "count":
        return (
            f"{me} arrives at a barrier for {extra[1] or 'all'} threads; others of the same phase said {extra[0] or 'all'}",
            "every arrival at a barrier names the same number of threads",
            "the others arrived here",
        )
    if rule == "mbarrier-init":
        return f"{me} uses {memory.text} as an mbarrier, and it was not initialized", "call mbarrier_init first", ""
    if rule == "mbarrier-twice":
        used = "in use" if extra[0] else "initialized"
        return (
            f"{me} initializes an mbarrier that is {used} already: {memory.text}",
            "let one thread initialize it, once; mbarrier_inval ends its use",
            "initialized here",
        )
    if rule == "mbarrier-overflow":
        return (
            f"{me} arrives {extra[1]} times at an mbarrier whose phase misses {extra[0]} arrivals: {memory.text}",
            "the count of mbarrier_init is the number of arrivals of a phase",
            "initialized here",
        )
    if rule == "mbarrier-bytes":
        return (
            f"an mbarrier waits for bytes that do not come: {extra[0]} were expected and {extra[1]} arrived",
            "expect exactly the bytes that the copies of a phase bring",
            "initialized here",
        )
    if rule == "lanes-exited":
        return (
            f"{me} waits for lanes of mask {extra[0] & 0xFFFFFFFF:#010x}, and lane {extra[1]} has exited",
            "name only lanes that come here in the mask",
            "",
        )
    if rule == "block-exited":
        return (
            f"{me} accesses the shared memory of block {_triple(other_block)} of its cluster, which may have ended by then",
            "let the blocks of the cluster wait for each other before they end: cluster_arrive() and cluster_wait()",
            "",
        )
    if rule == "lanes-mask":
        return (
            f"{me} is not in the mask {extra[0] & 0xFFFFFFFF:#010x} of the {site.what} it executes",
            "a lane that executes it must be in its mask",
            "",
        )
    if rule == "lanes-site":
        return (
            f"{me} is at a {site.what} while {other}, a lane of its mask, is at another place",
            "all lanes of the mask must execute the same operation: move it out of the branch, or name fewer lanes",
            "the other lane is here",
        )
    if rule == "index-overflow":
        sign = {"<<": "shifted left by"}.get(site.what, site.what)
        return (
            f"{me} computes {extra[0]} {sign} {extra[1]} for an address, which does not fit in 32 bits",
            "compute the index in 64 bits: Int64(...)",
            "",
        )
    return _explain_number(record, site, memory, me)


def _explain_race(
    rule: str, site: SanitizedSite, other_site: SanitizedSite, memory: _Memory, me: str, other: str, block: Triple,
    thread: Triple, other_block: Triple, other_thread: Triple, engine: int,
) -> tuple[str, str, str]:  # fmt: skip
    same = block == other_block and thread == other_thread
    other = other.replace(f"of thread {_triple(thread)}", "of its own") if same and engine else other
    before = {"read-write": "read", "write-read": "wrote", "write-write": "wrote"}.get(rule, "accessed")
    doing = _phrase(site.what, memory.text)
    if rule == "proxy":
        return (
            f"{me} {doing} in the async proxy; {other} wrote it, and no fence tells the async proxy so",
            "the writer calls fence_proxy(...) for the async proxy before the barrier that precedes the copy",
            f"written here by {other}",
        )
    text = f"{me} {doing}; {other} {before} it, and nothing orders the two"
    if engine:
        hint = "wait for the copy first: cp_async_wait_group and a barrier, or the mbarrier it arrives at"
    elif memory.space == "global" and block != other_block:
        hint = "blocks of a launch are not ordered: use atomics with release and acquire, or a second launch"
    elif block != other_block:
        hint = "put cluster_arrive() and cluster_wait() between the two"
    elif other_thread[1:] == thread[1:] and thread[0] // 32 == other_thread[0] // 32:
        hint = "put sync_warp() between the two, or sync_threads() if other warps take part"
    else:
        hint = "put sync_threads(), or a barrier or mbarrier that both take part in, between the two"
    return text, hint, f"{before if before != 'wrote' else 'written'} here by {other}"


def _explain_unset(
    element: int, site: SanitizedSite, other_site: SanitizedSite, memory: _Memory, me: str
) -> tuple[str, str, str]:
    """A value that nobody set decides something."""
    doing = {
        "write": f"writes {memory.text} with",
        "address": "accesses memory at an address that depends on",
        "branch": "takes a branch that depends on",
    }[site.what]
    if other_site.what == "register tensor":
        name = other_site.memory or "a register tensor"
        part = f"element {element} of {name}" if element < 1 << 31 else f"an element of {name}"
        hint = f"set it first, as {other_site.memory or 'tensor'}.fill(0) does, or guard this as its writes are guarded"
        return f"{me} {doing} {part}, which nobody has written", hint, f"{name} is made here, and holds nothing"
    return (
        f"{me} {doing} a variable that was not assigned on the way here",
        "assign it before the branch",
        "",
    )


_OPERATORS = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/", "remf": "%"}


def _explain_number(record: native.Finding, site: SanitizedSite, memory: _Memory, me: str) -> tuple[str, str, str]:
    """A result that is not finite."""
    bits = [record.extra[1], *record.numbers]
    result, left, right = (struct.unpack("<d", struct.pack("<Q", b & (1 << 64) - 1))[0] for b in bits)
    given = [f"{value:.6g}" for value in (left, right)[: record.bytes]]
    sign = _OPERATORS.get(site.what)
    if sign is not None and len(given) == 2:
        text = f"{given[0]} {sign} {given[1]}"
    else:
        text = f"{site.what}({', '.join(given) if given else '...'})"
    index, count = record.extra[0] & 0xFFFFFFFF, record.extra[0] >> 32
    where = f", element {index} of {count}" if count > 1 else ""
    goes = f"; it is stored in {memory.text}" if memory.space else ""
    return (
        f"{me} computes {text} = {result:g}{where}, not finite although its operands are{goes}",
        "guard the operation, or compute in a wider type",
        "",
    )


def _phrase(what: str, memory: str) -> str:
    verbs = {
        "read": "reads", "write": "writes", "atomic update": "updates (atomically)", "atomic read": "reads (atomically)",
        "atomic write": "writes (atomically)", "initialization of an mbarrier": "initializes an mbarrier in",
        "arrival at an mbarrier": "arrives at the mbarrier in", "wait for an mbarrier": "waits for the mbarrier in",
        "asynchronous copy to": "copies (asynchronously) to", "asynchronous copy from": "copies (asynchronously) from",
        "bulk copy to": "copies (in bulk) to", "asynchronous store to": "stores (asynchronously) to", "bulk copy from": "copies (in bulk) from",
    }  # fmt: skip
    return f"{verbs.get(what, what)} {memory}"


def _explain_bounds(record: native.Finding, site: SanitizedSite, memory: _Memory, me: str) -> tuple[str, str, str]:
    low, high = record.extra[0], record.extra[1]
    size = site.element_bits / 8 or 1
    hint = "guard the access with a comparison against the tensor's shape"
    if record.space == 0:
        at, count = int(low // size), int(high // size)
        return f"{me} {_phrase(site.what, 'element')} {at} of a register array of {count} {site.element}", hint, ""
    if record.space == native.SHARED:
        offset = record.offset - low
        what = f"element {int(offset // size)}" if offset >= 0 else f"{-offset} bytes before the start"
        return (
            f"{me} {_phrase(site.what, what)} of {site.memory or 'shared memory'}, which has {int((high - low) // size)} of {site.element}",
            hint,
            "",
        )
    if record.object:
        where = (record.address - low) & (1 << 64) - 1
        where = where - (1 << 64) if where >> 63 else where
        total = int((high - low) // size)
        return (
            f"{me} {_phrase(site.what, 'element')} {int(where // size)} of {site.memory or memory.tensor}, whose memory has {total} of {site.element}",
            hint,
            "",
        )
    return f"{me} {_phrase(site.what, memory.text)}, which is no memory of the program", hint, ""
