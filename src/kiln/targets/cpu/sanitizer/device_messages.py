"""Findings about two devices, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from . import state as native
from .report_facts import ReportFacts
from .rule_messages import Case, Words, explain


@dataclasses.dataclass(frozen=True)
class Sides:
    """The devices of a finding, and the build of the other side."""

    device: int
    other: ReportFacts
    other_device: int
    place_of: Callable[[int], str]
    """Returns which memory an address belongs to; empty if it does not know."""

    def on_device(self, who: str, kernel: str) -> str:
        """Return who it was, with the device."""
        return f"{who} on device {self.device}" if kernel else f"the host of rank {self.device}"

    def on_other_device(self, who: str, kernel: str) -> str:
        return f"{who} of {kernel} on device {self.other_device}" if kernel else f"the host of rank {self.other_device}"

    def memory(self, text: str, address: int) -> str:
        """Return what an address belongs to, which `text` says if nobody else knows."""
        place = self.place_of(address)
        return f"{text} ({place})" if place else text


_ORDER = (
    "order them at system scope: one releases a flag after its access (red.release.sys, st.release.sys, or fence.acq_rel.sys "
    "before a relaxed store), the other acquires it before its own (ld.acquire.sys); or let the ranks meet between the two "
    "launches"
)
_OF_HOST = "let the ranks meet between the two: synchronize the device, then torch.distributed.barrier()"


def explain_devices(case: Case) -> Words:
    """Return a finding of a program on several devices in words."""
    rule = _RULES.get(case.rule)
    if rule is not None:
        return rule(case)
    words = explain(case)
    if case.before and native.KIND_OF_RULE[case.rule] == "race":
        of_host = not case.site.kernel or not case.other_site.kernel
        return words._replace(hint=_OF_HOST if of_host else _ORDER)
    return words


def _scope(case: Case) -> Words:
    mine, theirs = (native.SCOPES[number] for number in case.extra)
    return Words(
        f'{case.me} {case.action} with scope "{mine}", {case.other} accessed it with scope "{theirs}", and a scope below '
        '"sys" includes the threads of one device only',
        'give both the scope "sys", and fences that go with them',
        f"accessed here by {case.other}",
    )


def _multicast(case: Case) -> Words:
    return Words(
        f"{case.me} {case.action}, a multicast address: only multimem instructions, and TMA stores, may use it",
        "use the address of this device's own memory, or a multimem instruction",
    )


def _freed(case: Case) -> Words:
    if case.extra[0]:
        text = f"{case.me} gives back {case.memory}, which {case.other} accesses, and nothing says that this is over"
        note = f"accessed here by {case.other}"
    else:
        text = f"{case.me} {case.action}, which its device has given back: the rank has freed it, or has ended"
        note = ""
    return Words(text, f"keep it until all ranks are done: {_OF_HOST}", note)


def _overwritten(case: Case) -> Words:
    return Words(
        f"{case.me} {case.action}, which {case.other} stored, and nobody has read that value",
        "where a value is its own flag, a buffer may be used again when its peer has read it: take several buffers in "
        "turn, and clear one that all have read",
        f"stored here by {case.other}",
    )


_RULES: dict[str, Callable[[Case], Words]] = {
    "device-scope": _scope,
    "multicast": _multicast,
    "freed": _freed,
    "overwritten": _overwritten,
}
