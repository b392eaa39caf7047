"""What reports need of an instrumented build: its places, its kernels and their memory. The disk cache keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ....base_dsl.diagnostics import Span
from ....base_dsl.sanitizing import BOUNDS
from .program_memory import Argument, KernelInfo, SanitizedSite, SharedView


class ReportFacts:
    """An instrumented build as reports see it."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds: tuple[str, ...] = tuple(kinds)
        self.plain: bool = BOUNDS in self.kinds
        """Whether only bounds and unset shared memory are looked for."""
        self.strict: bool = False
        """Whether an access out of bounds is an error, where only these are looked for."""
        self.silent: bool = False
        """Whether nothing is a warning."""
        self.outside: bool = False
        """Whether a call made a warning of an access out of bounds."""
        self.once: list[str] = []
        """Why some of its launches run under one schedule only, whatever they do."""
        self.sites: list[SanitizedSite] = []
        self.kernels: list[KernelInfo] = []

    def encoded(self) -> dict[str, Any]:
        """Return the places and kernels as JSON can hold them."""
        return {
            "sites": list(map(dataclasses.asdict, self.sites)),
            "kernels": list(map(dataclasses.asdict, self.kernels)),
        }

    @staticmethod
    def decoded(kinds: Sequence[str], facts: dict[str, Any]) -> ReportFacts:
        """Return the inverse of `encoded`."""
        decoded_facts = ReportFacts(kinds)
        for site in facts["sites"]:
            calls = tuple(Span(**call) for call in site["calls"])
            decoded_facts.sites.append(
                SanitizedSite(**{**site, "span": site["span"] and Span(**site["span"]), "calls": calls})
            )
        for kernel in facts["kernels"]:
            arguments = [argument and Argument(**argument) for argument in kernel["arguments"]]
            views = [SharedView(**{**view, "tensor": Argument(**view["tensor"])}) for view in kernel["views"]]
            decoded_facts.kernels.append(KernelInfo(**{**kernel, "arguments": arguments, "views": views}))
        return decoded_facts
