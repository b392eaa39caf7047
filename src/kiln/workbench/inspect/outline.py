"""Outlines how kernels are built, read from the traced module, for readers who do not know the program.

Tensor maps, launch, shared memory by buffer, roles of warps, barriers with their counts, pipelines and stages, copies
and MMAs, each with its line.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import linecache
import os
import re
from collections.abc import Callable, Iterable, Mapping

from ..core import source_lines
from ..core.source_lines import Place
from .capture import Captured, Compiled


@dataclasses.dataclass
class Item:
    """One line of an outline."""

    words: str
    place: Place | None = None
    depth: int = 0


@dataclasses.dataclass
class Operation:
    """An operation of the module as it is printed."""

    result: str
    name: str
    operands: list[str]
    attributes: dict[str, str]
    place: Place | None
    function: str
    type: str
    """The type of its result."""
    branches: tuple[tuple[Place, str], ...]
    """The branches of the program that enclose it: the line of each, and `if` or `else`."""


_OP = re.compile(r'^\s*(?:(%[\w#:, ]+) = )?"?([a-z_]\w*(?:\.\w+)+)"?(.*)$')
_ATTRIBUTE = re.compile(r'([\w.]+) = (array<[^>]*>|"[^"]*"|[^,}]+)')
_FUNCTION = re.compile(r"func\.func @([\w$.-]+)")
_CONSTANT = re.compile(r"^\s*(%\w+) = arith\.constant (-?\d+|true|false)\b")


def operations(text: source_lines.Text) -> tuple[list[Operation], dict[tuple[str, str], int]]:
    """Return the operations of a module, and its integer constants by function and name."""
    parsed: list[Operation] = []
    numbers: dict[tuple[str, str], int] = {}
    function = ""
    open_branches: list[tuple[Place, str] | None] = []
    for line, place in zip(text.lines, text.places):
        if start := _FUNCTION.search(line):
            function = start[1]
        if constant := _CONSTANT.match(line):
            word = constant[2]
            numbers[function, constant[1]] = int(word == "true") if word.isalpha() else int(word)
        if line.lstrip().startswith("}") and open_branches:
            branch = open_branches.pop()
            if line.endswith("{"):
                open_branches.append((branch[0], "else") if branch else None)
        elif line.endswith("{"):
            is_branch = "scf.if" in line and place and linecache.getline(*place).lstrip().startswith(("if ", "elif "))
            open_branches.append((place, "if") if is_branch and place else None)
        if op := _OP.match(line):
            operands = re.findall(r"%[\w#]+", (op[3].split(")")[0] if op[3].startswith("(") else op[3]))
            between = op[3][op[3].find("{") :] if "{" in op[3] else ""
            attributes = {name: value.strip('"').split(" : ")[0] for name, value in _ATTRIBUTE.findall(between)}
            branches = tuple(branch for branch in open_branches if branch)
            type_ = op[3].rpartition("-> ")[2]
            parsed.append(Operation(op[1] or "", op[2], operands, attributes, place, function, type_, branches))
    return parsed, numbers


def sections(one: Compiled, captured: Captured) -> dict[str, list[Item]]:
    """Return the parts of an outline by title, without empty ones."""
    ops, numbers = operations(source_lines.read_mlir(one.states[0][1]))

    def number(op: Operation, which: int) -> int | str:
        return numbers.get((op.function, op.operands[which]), "?") if which < len(op.operands) else "?"

    constant_bits = _constant_bits(ops, numbers)
    by_name: dict[str, list[Operation]] = collections.defaultdict(list)
    for op in ops:
        by_name[op.name.partition(".")[2]].append(op)
    by_title = {
        "launches": [_launch(op, number, captured) for op in by_name["launch_ex"]],
        "tensor maps": [_tensor_map(op) for op in by_name["tensor_map_encode"]],
        "shared memory": _shared(by_name, numbers),
        "tensor memory": [Item(f"{number(op, 1):>7} columns{_pair(op)}", op.place) for op in by_name["tcgen05_alloc"]],
        "roles": _roles(ops),
        "pipelines": _pipelines(by_name, number),
        "barriers": _barriers(by_name, number),
        "copies": _counted(_copies(by_name)),
        "MMAs": _counted(
            [(op.place, _mma(op)) for name in _MMAS for op in by_name[name]]
            + [(op.place, _tcgen05_mma(op, constant_bits(op, 3))) for name in _TCGEN05_MMAS for op in by_name[name]]
        ),
    }
    return {title: items for title, items in by_title.items() if items}


_TCGEN05_MMAS = ("tcgen05_mma", "tcgen05_mma_block_scale", "tcgen05_mma_ws")


def _constant_bits(ops: Iterable[Operation], numbers: Mapping[tuple[str, str], int]) -> Callable[[Operation, int], int]:
    """Return a function that finds the known bits of an operand: a program adds flags to an instruction descriptor."""
    results = {(op.function, op.result): op for op in ops if op.name == "arith.ori"}

    def constant_bits(op: Operation, which: int) -> int:
        if which >= len(op.operands):
            return 0
        name = (op.function, op.operands[which])
        if name in results:
            return constant_bits(results[name], 0) | constant_bits(results[name], 1)
        return numbers.get(name, 0)

    return constant_bits


def tensor_memory(text: source_lines.Text) -> tuple[int, int]:
    """Return the columns of the largest allocation of tensor memory, and those of the widest accumulator; 0 if unknown."""
    ops, numbers = operations(text)
    constant_bits = _constant_bits(ops, numbers)
    named = {
        name: [op for op in ops if op.name.partition(".")[2] == name] for name in ("tcgen05_alloc", *_TCGEN05_MMAS)
    }
    sizes = [numbers.get((op.function, op.operands[1]), 0) for op in named["tcgen05_alloc"] if len(op.operands) > 1]
    descriptors = [constant_bits(op, 3) for name in _TCGEN05_MMAS for op in named[name]]
    return max(sizes, default=0), max((_columns(each) for each in descriptors), default=0)


def _columns(idesc: int) -> int:
    """Return N of an instruction descriptor of sm_100, which holds N / 8 from bit 17 on."""
    return (idesc >> 17 & 63) * 8


def _pair(op: Operation) -> str:
    return ", a pair of CTAs" if op.attributes.get("cta_group") == "2" else ""


def _launch(op: Operation, number: Callable[[Operation, int], int | str], captured: Captured) -> Item:
    sizes = [[number(op, 3 * part + axis) for axis in range(3)] for part in range(3)]
    name = op.attributes.get("kernel", "?").lstrip("@")
    launched = next((one for one in captured.launches if one["kernel"] == name), None)
    if launched:
        sizes = [launched["grid"], launched["block"], launched["cluster"]]
    if list(sizes[2]) == [1, 1, 1]:
        del sizes[2]
    words = [f"{title} {_extents(size)}" for title, size in zip(("grid", "block", "cluster"), sizes)]
    words += [f"{launched['smem']} bytes of dynamic shared memory"] if launched and launched["smem"] else []
    options = {name.partition(".")[2]: value for name, value in op.attributes.items()}
    words += [text.format(options[name]) for name, text in _LAUNCH_WORDS.items() if name in options]
    return Item(f"{name}: {', '.join(words)}", op.place)


_LAUNCH_WORDS = {
    "min_blocks": "min. blocks {}",
    "max_threads": "max. threads {}",
    "preferred_cluster": "preferred cluster {}",
    "use_pdl": "dependent launch",
    "cooperative": "cooperative",
    "cluster_scheduling": "cluster scheduling policy {}",
}
"""Attributes of launches, in words."""


def _extents(size: Iterable[object]) -> str:
    return " x ".join(map(str, size))


def _tensor_map(op: Operation) -> Item:
    has = op.attributes
    box = " x ".join(re.findall(r"\d+", has.get("box", has.get("pixel_box", "")).partition(":")[2]))
    words = [f"box {box} of {has.get('element')}", f"swizzle {has.get('swizzle')}"]
    usual = {"interleave": "none", "fill": "zeros", "promotion": ""}
    words += [f"{name} {has[name]}" for name, default in usual.items() if has.get(name, default) != default]
    return Item(f"{has.get('tensor', '')}: {', '.join(words)}", op.place)


def _shared(by_name: dict[str, list[Operation]], numbers: dict[tuple[str, str], int]) -> list[Item]:
    """Return allocations; for one that holds several buffers, also where each begins."""
    items: list[Item] = []
    total = 0
    for op in by_name["alloc_smem"]:
        size = int(op.attributes["bytes"])
        total += size
        items.append(Item(f"{size:>7} bytes, aligned to {op.attributes['alignment']}", op.place))
        parts: dict[int, Place | None] = {}
        for one in (*by_name["cast_ptr"], *by_name["ptr_add"]):  # a structure is allocated as bytes
            if one.function == op.function and one.operands[0] == op.result and one.place != op.place:
                offset = numbers.get((op.function, one.operands[1])) if len(one.operands) > 1 else 0
                if offset is not None and "i8" in op.type:
                    parts.setdefault(offset, one.place)
        starts = sorted(parts)
        if len(starts) > 1:
            for start, end in itertools.pairwise([*starts, size]):
                items.append(Item(f"{end - start:>7} bytes at {start}", parts[start], 1))
    return [*items, Item(f"{total:>7} bytes in all")] if len(by_name["alloc_smem"]) > 1 else items


_DOES = {
    "tma_load": "loads by TMA",
    "tma_store": "stores by TMA",
    "bulk_load": "bulk loads",
    "bulk_store": "bulk stores",
    "cp_async": "cp.async",
    "wgmma": "MMAs",
    "mma_sync": "MMAs",
    "mma_block_scale": "MMAs",
    "ldmatrix": "ldmatrix",
    "stmatrix": "stmatrix",
    "mbarrier_wait": "waits",
    "mbarrier_arrive": "arrives",
    "wgmma_wait": "waits for MMAs",
    "cp_async_wait": "waits for cp.async",
    "cp_async_bulk_wait": "waits for stores",
    "barrier": "barriers",
    "set_max_register": "registers",
    "tcgen05_mma": "MMAs",
    "tcgen05_mma_block_scale": "MMAs",
    "tcgen05_mma_ws": "MMAs",
    "tcgen05_commit": "commits",
    "tcgen05_cp": "copies to tensor memory",
    "tcgen05_ld": "loads tensor memory",
    "tcgen05_ld_red": "loads tensor memory",
    "tcgen05_st": "stores tensor memory",
    "tcgen05_alloc": "allocates tensor memory",
    "tcgen05_dealloc": "frees tensor memory",
    "clc_try_cancel": "requests tiles",
}


def _roles(ops: list[Operation]) -> list[Item]:
    """Return the branches of kernels in which warps do different things, with what they do and where."""
    doing: dict[tuple[tuple[Place, str], ...], dict[str, list[str]]] = {}
    for op in ops:
        words = _DOES.get(op.name.partition(".")[2])
        if not op.branches or not words or not op.place:
            continue
        what = op.attributes["count"] if words == "registers" else _where(op.place, op.branches[0][0][0])
        for depth in range(1, len(op.branches) + 1):  # so that the outer ones come first
            doing.setdefault(op.branches[:depth], {})
        done = doing[op.branches].setdefault(words, [])
        if what not in done:
            done.append(what)
    if not any("registers" in did or len(did) > 1 for did in doing.values()):
        return []
    items: list[Item] = []
    for branches, did in doing.items():
        place, which = branches[-1]
        source = linecache.getline(*place).strip() if which == "if" else "else:"
        forms = {name: "{} {}" if name == "registers" else "{} (line {})" for name in did}
        words = "; ".join(forms[name].format(name, ", ".join(where)) for name, where in did.items())
        items.append(Item(f"{source}  {words}".rstrip(), place, len(branches) - 1))
    return items


def _where(place: Place, home: str) -> str:
    """Return a line, with its file if that is not `home`."""
    return str(place[1]) if place[0] == home else f"{os.path.basename(place[0])}:{place[1]}"


def _statement(place: Place | None) -> str:
    return linecache.getline(*place).strip() if place else ""


def _pipelines(by_name: dict[str, list[Operation]], number: Callable[[Operation, int], int | str]) -> list[Item]:
    """Return pipelines: lines that initialise several barriers at once, full barriers first, then empty ones."""
    items: list[Item] = []
    expected = {(op.place, number(op, 2)) for op in by_name["mbarrier_arrive"] if number(op, 2) not in (0, "?")}
    expected |= {(op.place, number(op, 1)) for op in by_name["mbarrier_expect_tx"]}
    for place, counts in _inits(by_name, number).items():
        kind = re.search(r"\b(Pipeline\w+)", _statement(place))
        runs = [(count, len(list(group))) for count, group in itertools.groupby(counts)]
        if not kind and len(counts) < 2:
            continue
        stages = runs[0][1] if len(runs) > 1 or kind else len(counts)
        if len(runs) == 1 and kind:
            stages = max(1, len(counts) // 2)
        arrivals = " and ".join(dict.fromkeys(_arrivals(count) for count, _ in runs))
        shown = f"{stages} stage{'s' if stages != 1 else ''}"
        words = f"{kind[1] if kind else 'barriers'}: {shown}, {len(counts)} mbarriers of {arrivals}"
        bytes_ = sorted({str(count) for _, count in expected})
        if kind and "Tma" in kind[1] and len(bytes_) == 1:
            words += f", {bytes_[0]} bytes a stage"
        items.append(Item(words, place))
    return items


def _arrivals(count: int | str) -> str:
    return "1 arrival" if count == 1 else f"{count} arrivals"


def _inits(
    by_name: dict[str, list[Operation]], number: Callable[[Operation, int], int | str]
) -> dict[Place | None, list[int | str]]:
    inits: dict[Place | None, list[int | str]] = collections.defaultdict(list)
    for op in by_name["mbarrier_init"]:
        inits[op.place].append(number(op, 1))
    return inits


def _barriers(by_name: dict[str, list[Operation]], number: Callable[[Operation, int], int | str]) -> list[Item]:
    barriers: list[tuple[Place | None, str]] = []
    for op in by_name["mbarrier_init"]:
        barriers.append((op.place, f"mbarrier of {_arrivals(number(op, 1))}"))
    for op in by_name["barrier"]:
        which = number(op, 0)
        threads = number(op, 1)
        named = "" if which == 0 else f"barrier {which}: "
        words = f"{named}all threads of the CTA" if threads == 0 else f"barrier {which}: {threads} threads"
        barriers.append((op.place, words))
    for op in by_name["barrier_arrive"]:
        barriers.append((op.place, f"barrier {number(op, 0)}: {number(op, 1)} threads, arrives only"))
    for op in by_name["cluster_arrive"]:
        barriers.append((op.place, "all threads of the cluster"))
    return _counted(barriers)


_TENSOR_COPIES = {
    "tcgen05_ld": "tcgen05.ld",
    "tcgen05_ld_red": "tcgen05.ld.red",
    "tcgen05_st": "tcgen05.st",
    "tcgen05_cp": "tcgen05.cp",
}


def _copies(by_name: dict[str, list[Operation]]) -> Iterable[tuple[Place | None, str]]:
    for op in by_name["tma_load"]:
        yield op.place, "TMA load, multicast" if op.attributes.get("multicast") == "true" else "TMA load"
    for op in by_name["tma_store"]:
        yield op.place, f"TMA store{', ' + op.attributes['reduction'] if 'reduction' in op.attributes else ''}"
    bulk = {"bulk_load": "bulk load", "bulk_store": "bulk store", "bulk_send": "bulk copy to another CTA"}
    for name, text in bulk.items():
        for op in by_name[name]:
            yield op.place, text
    for op in by_name["cp_async"]:
        yield op.place, f"cp.async of {op.attributes.get('size')} bytes"
    for name, text in _TENSOR_COPIES.items():
        for op in by_name[name]:
            repeat = f" x{op.attributes['repeat']}" if "repeat" in op.attributes else ""
            yield op.place, f"{text} {op.attributes.get('shape')}{repeat}{_pair(op)}"
    for name in ("ldmatrix", "stmatrix"):
        for op in by_name[name]:
            transposed = ", transposed" if "transpose" in op.attributes else ""
            yield op.place, f"{name} x{op.attributes.get('count')}{transposed}"


_MMAS = ("wgmma", "mma_sync", "mma_block_scale")


def _mma(op: Operation) -> str:
    has = op.attributes
    m = has.get("m", "64" if op.name.endswith("wgmma") else "?")
    unit = "wgmma" if op.name.endswith("wgmma") else "mma.sync"
    orders = f", A {has['a_major']}-major, B {has['b_major']}-major" if "a_major" in has else ""
    kind = f" {has['kind']}" if "kind" in has else ""
    scales = f", {has['scale_type']} for each {has.get('scale_vector')}" if "scale_type" in has else ""
    types = f"{has.get('a_type')} x {has.get('b_type')}"
    return f"{unit} m{m}n{has.get('n')}k{has.get('k')}{kind} {types}{scales}{orders}"


def _tcgen05_mma(op: Operation, idesc: int) -> str:
    """Return an MMA of sm_100 in words. Its instruction descriptor holds M / 16 from bit 24 on and N / 8 from bit 17 on."""
    shape = f" m{(idesc >> 24 & 31) * 16}n{_columns(idesc)}" if idesc else ""
    ws = ".ws" if op.name.endswith("_ws") else ""
    block = f", a scale factor for each {op.attributes['block']}" if "block" in op.attributes else ""
    return f"tcgen05.mma{ws}{shape} {op.attributes.get('kind')}{block}{_pair(op)}"


def _counted(barriers: Iterable[tuple[Place | None, str]]) -> list[Item]:
    counts = collections.Counter(barriers)
    ordered = sorted(counts, key=lambda key: (key[0] or ("", 0), key[1]))
    return [Item(f"{counts[key]} x {key[1]}" if counts[key] > 1 else key[1], key[0]) for key in ordered]


# --- as text ---------------------------------------------------------------------------------------------------------


def outline(one: Compiled, captured: Captured) -> str:
    """Return the outline of a compiled function as text."""
    home = one.kernels[0]["file"] if one.kernels else ""
    lines = [f"{one.entry} for {one.arch}" + (f", {os.path.basename(home)}" if home else "")]
    for title, items in sections(one, captured).items():
        lines += ["", title]
        places = [_where(item.place, home) if item.place else "" for item in items]
        width = max(5, *map(len, places))
        for item, where in zip(items, places):
            source = _statement(item.place) if title != "roles" else ""
            shown = f"  {where:>{width}}  {'  ' * item.depth}{item.words}"
            lines.append(f"{shown:<72}  | {source[:70]}" if source and len(shown) <= 90 else shown)
    return "\n".join(lines)
