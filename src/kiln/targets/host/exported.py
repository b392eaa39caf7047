"""Records about a function's code in exported objects, for all targets; native code reads them.

`Portable` is the code of one architecture, from which Python writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.arguments import ARGUMENT_CHECKS
from ...native import Fn, Ptr, i32, i64, struct
from ..lowering.sites import Site as Place
from . import tensor_map_rules
from .faults import ILLEGAL_ADDRESS

if TYPE_CHECKING:
    from .elf.objects import Data, Object, Symbol
    from .jit import Part, Processor

FORM, REFUSED, RULES = range(3)
"""Kinds of site texts: a format for the numbers of a fault, or a prefix for the driver's status or a rule."""
INVALID_VALUE = 1
ASSERT = 710
LAUNCH_FAILED = 719
"""Statuses of the driver, which other targets give as well."""
ARGUMENTS_DISAGREE = -100
"""The status of a call whose arguments disagree on a shared extent or stride."""


@struct
class Site:
    """A place that can fail."""

    kind: i32
    status: i32
    form: Ptr
    kernel: Ptr
    """The name of the kernel, where block and thread say more."""
    rules: Ptr[Ptr]
    """Texts of `RULES`, by the fault's first number; "vm|its size is %d in mode %d" takes the third number (v), then
    the second (m)."""
    rule_count: i64


@struct
class Code:
    """A function's code for one architecture."""

    entry: Fn[[Ptr], Ptr]
    sites: Ptr[Site]
    count: i64


@struct
class Word:
    """An address."""

    address: Ptr


class Portable(NamedTuple):
    """The code of a function for one architecture, as an exported object takes it."""

    architecture: str
    processor_code: Callable[[Processor | None, str], Object]
    """Makes object code of the host's part for a processor, with this at the end of the names that it exports."""
    parts: Sequence[Part]
    """The parts of the runtime that it may need."""
    sites: Sequence[Place]
    prints: bool = False
    """Whether calls may print."""
    kernels: Any = ()
    """What a GPU runs; a target's own."""
    image_bytes: int = 0
    """Bytes of the code that a GPU runs."""
    place: Callable[[Data, Sequence[Portable]], tuple[Symbol, dict[str, str]]] | None = None
    """Writes the records of all architectures for the target's loader, and names its functions; None if nothing is
    loaded."""


def place_code(data: Data, portable: Portable, entry: str) -> tuple[Code, dict[str, Symbol]]:
    """Return the record of some code."""
    addresses = {"entry": data.symbol(entry)}
    if portable.sites:
        addresses["sites"] = place_sites(data, portable.sites)
    return Code(count=len(portable.sites)), addresses


def place_sites(data: Data, sites: Sequence[Place]) -> Symbol:
    """Return the records of some places, by their numbers."""
    return data.records([_site(data, site) for site in sites])


def _site(data: Data, site: Place) -> tuple[Site, dict[str, Symbol]]:
    where = f"{os.path.basename(site.span.filename)}:{site.span.line}: " if site.span else ""
    kind = FORM
    status = ASSERT
    form = ""
    kernel = site.kernel
    if site.kind == "refused":
        kind = REFUSED
        form = f"cannot launch kernel {site.kernel}"
        kernel = ""
    elif site.kind == "launch":
        sizes = "grid=(%d, %d, %d), block=(%d, %d, %d), cluster=(%d, %d, %d), smem=%d"
        status = INVALID_VALUE
        form = f"cannot launch kernel {site.kernel} with {sizes}"
        kernel = ""
    elif site.kind == "assert":
        form = f"assertion failed: {plain_form(site.message, site.types)}"
        if form.endswith(ARGUMENT_CHECKS):
            status = ARGUMENTS_DISAGREE
            form = form.partition(": ")[2]
    elif site.kind == "tensor_map":
        kind = RULES
        status = INVALID_VALUE
        form = f"cannot make the tensor map of {site.message or 'a tensor'}: "
    elif site.kind == "host":
        status = ILLEGAL_ADDRESS
        form = "host code accessed memory that is not there"
    else:
        form = f"{site.message} ({site.kind})".replace("%", "%%")
    addresses = {"form": data.text(where + form)}
    if kernel:
        addresses["kernel"] = data.text(kernel)
    rules = tensor_map_rules.forms() if kind == RULES else []
    if rules:
        addresses["rules"] = data.records([(Word(), {"address": data.text(rule)}) for rule in rules])
    return Site(kind=kind, status=status, rule_count=len(rules)), addresses


_CONVERSION = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?(?:hh|h|ll|l|j|z|t)?([a-zA-Z]))")


def plain_form(message: str, types: Sequence[str]) -> str:
    """Return a C format as a form of `texts.put_form`, which knows no widths."""
    kinds = iter(types)

    def plain(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%%"
        if next(kinds, "i64") == "f64":
            return "%g"
        return {"u": "%u", "x": "%x", "X": "%x", "p": "0x%x"}.get(match[1], "%d")

    return _CONVERSION.sub(plain, message)
