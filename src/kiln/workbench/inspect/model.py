"""What a page of `kiln inspect --html` shows, as one JSON value: texts, the place of each line, facts about lines.

    files    the program's sources: path, name, lines
    units    one for each compiled function (and config): name, config, kernels, notes, texts, columns, calls
      texts    kind (mlir, llvm, ptx, sass), title, lines, labels, places: for each line [file, line], or null
      columns  id, title, help, values: {"file:line": number}, details: {"file:line": words}
      outline  [[title, [[words, place, depth], ...]], ...]: how the kernels are built
      calls    [[file, line], [file, line]]: the first is in a function that was inlined at the second
    diffs    of the first unit and each of another config: {"kind/title": [[same, from, to, from, to], ...]}

Files are numbers of `files`, lines count from 1 there and from 0 in texts.
"""

from __future__ import annotations

import collections
import difflib
import os
import re
from typing import Any

from kiln import __version__

from ...hardware.sass import class_of
from ..core import source_lines
from ..core.records import Journal
from ..core.source_lines import Place, Text, instruction_of
from ..report.model import words
from .capture import Captured, Compiled
from .outline import sections
from .resources import described


class Files:
    """The program's files by number."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[str, int | None] = {}

    def number(self, path: str) -> int | None:
        """Return the number of a file; None if it cannot be read."""
        if path not in self._numbers:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    lines = file.read().expandtabs(8).splitlines()
            except OSError:
                self._numbers[path] = None
                return None
            self._numbers[path] = len(self.entries)
            self.entries.append({"path": path, "name": os.path.basename(path), "lines": lines})
        return self._numbers[path]

    def place(self, place: Place | None) -> list[int] | None:
        if place is None:
            return None
        number = self.number(place[0])
        return None if number is None or place[1] > len(self.entries[number]["lines"]) else [number, place[1]]


def build(
    runs: list[Captured], title: str, command: str = "", stalls: list[dict[Place, float]] | None = None
) -> dict[str, Any]:
    """Return the model of runs. `stalls` are profiles; the first that is about this program counts."""
    files = Files()
    units: list[dict[str, Any]] = []
    said: list[str] = []
    for captured in runs:
        for one in captured.compiled:
            unit = _unit(one, captured, files)
            unit["columns"] += _observed(files, captured, stalls or [])
            units.append(unit)
        where = f" ({words(captured.config)})" if captured.config is not None else ""
        if captured.failure and captured.compiled:
            ending = f"The program ended with {captured.failure.splitlines()[0]}{where}"
            said.append(f"{ending}. Its kernels were compiled before; nothing is launched, so there are no results.")
        if captured.unobserved:
            said.append(captured.unobserved + where)
    if units and not any(text["kind"] == "sass" for text in units[0]["texts"]):
        said.append("There is no ptxas or nvdisasm here, so there is no SASS: pip install 'kiln-dsl[cuda]'.")
    ptxas = next((captured.ptxas for captured in runs), "")
    about = {"title": title, "command": command, "kiln": __version__, "ptxas": ptxas, "notes": said}
    return {**about, "files": files.entries, "units": units, "diffs": _diffs(units)}


def _unit(one: Compiled, captured: Captured, files: Files) -> dict[str, Any]:
    """Return what a page shows of one compiled function."""
    for kernel in one.kernels:  # first, so that the file of the first kernel is the first to be shown
        files.place((os.path.normpath(kernel["file"]), kernel["line"]) if kernel["file"] else None)
    texts: list[tuple[str, str, Text]] = []
    for name, state in one.states:
        text = source_lines.read_mlir(state)
        if not texts or text.lines != texts[-1][2].lines:  # passes that changed nothing are not shown
            texts.append(("mlir", name, text))
    texts.append(("llvm", "optimized", source_lines.read_llvm(one.llvm)))
    texts.append(("ptx", one.arch, source_lines.read_ptx(one.ptx)))
    if one.sass:
        texts.append(("sass", one.arch, source_lines.read_sass(one.sass)))
    calls = {call for _, _, text in texts for call in text.calls}
    placed = [(files.place(inner), files.place(outer)) for inner, outer in calls]
    unit = {
        "name": one.entry,
        "arch": one.arch,
        "config": None if captured.config is None else words(captured.config),
        "kernels": [described(kernel, one.arch, captured.launches) for kernel in one.kernels],
        "texts": [
            {
                "kind": kind,
                "title": title,
                "lines": text.lines,
                "labels": text.labels if any(text.labels) else None,
                "places": [files.place(place) for place in text.places],
            }
            for kind, title, text in texts
        ],
        "calls": sorted([inner, outer] for inner, outer in placed if inner and outer and inner != outer),
        "columns": [],
        "outline": _outline(one, captured, files),
    }
    by_kind = {text["kind"]: text for text in unit["texts"]}
    if "sass" in by_kind:
        unit["columns"] = _of_sass(by_kind["sass"], source_lines.read_live_registers(one.live))
    else:
        counts = collections.Counter(f"{place[0]}:{place[1]}" for place in by_kind["ptx"]["places"] if place)
        unit["columns"] = [_column("ptx", "PTX", "instructions of PTX", counts)]
    return unit


def _outline(one: Compiled, captured: Captured, files: Files) -> list[Any]:
    """Return how the kernels are built: [title, [[words, place, depth], ...]]."""
    sections_ = sections(one, captured).items()
    return [
        [title, [[item.words, files.place(item.place), item.depth] for item in items]] for title, items in sections_
    ]


def _column(name: str, title: str, words: str, values: Any, details: dict[str, str] | None = None) -> dict[str, Any]:
    return {"id": name, "title": title, "help": words, "values": dict(values), "details": details or {}}


def _of_sass(text: dict[str, Any], live: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Return the columns that are counted in SASS; add live registers to the text."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    most: dict[str, int] = {}
    registers: list[int | None] = []
    kernel = ""
    for line, label, place in zip(text["lines"], text["labels"] or [], text["places"]):
        if not label:
            kernel = line[:-1] if line.endswith(":") and not line.startswith(".L_") else kernel
        used = live.get((kernel, label)) if label else None
        registers.append(used)
        if label and place:
            at = f"{place[0]}:{place[1]}"
            counts[at][class_of(instruction_of(line))] += 1
            most[at] = max(most.get(at, 0), used or 0)
    details = {at: ", ".join(f"{n} {name}" for name, n in counted.most_common()) for at, counted in counts.items()}
    totals = {at: counted.total() for at, counted in counts.items()}
    columns = [_column("sass", "SASS", "machine instructions", totals, details)]
    if live:
        text["live"] = registers
        columns.append(_column("live", "live", "the most registers in use at a time in the line's instructions", most))
    local = {at: counted["local"] for at, counted in counts.items() if counted["local"]}
    if local:
        about = "instructions that access local memory: spilled registers, or arrays that are indexed"
        columns.append(_column("local", "local", about, local))
    return columns


def _observed(files: Files, captured: Captured, stalls: list[dict[Place, float]]) -> list[dict[str, Any]]:
    """Return the columns of what happened when the program ran."""

    def at(where: Any) -> str | None:
        place = files.place((os.path.normpath(where["file"]), where["line"])) if where else None
        return f"{place[0]}:{place[1]}" if place else None

    columns: list[dict[str, Any]] = []
    lost: collections.Counter[str] = collections.Counter()
    said: dict[str, list[str]] = collections.defaultdict(list)
    for one in captured.accesses:
        where = at(one["span"])
        if where:
            lost[where] += one["conflicts"]
            counted = f"{one['wavefronts']} wavefronts, {one['ideal']} without conflicts, {one['worst']}-way at worst"
            said[where].append(f"{one['operation']} of {one['width']} bytes: {counted}")
    if lost:
        about = "wavefronts of shared memory lost to bank conflicts, counted on the CPU target"
        columns.append(_column("banks", "conflicts", about, lost, {at: "; ".join(w) for at, w in said.items()}))
    messages_at: dict[str, list[str]] = collections.defaultdict(list)
    for one in captured.findings:
        for where in filter(None, {at(one["span"]), at(one["other_span"])}):
            messages_at[where].append(one["message"])
    if messages_at:
        counts = {at: len(messages) for at, messages in messages_at.items()}
        details = {at: "; ".join(messages) for at, messages in messages_at.items()}
        columns.append(_column("findings", "findings", "the sanitizer's findings on the CPU target", counts, details))
    shown = {one["path"] for one in files.entries}
    last = next((one for one in stalls if any(file in shown for file, _ in one)), {})
    samples = {at({"file": file, "line": line}): share for (file, line), share in last.items() if file in shown}
    if samples:
        columns.append(_column("stalls", "stalls %", "of the samples of the last profile, in percent", samples))
    return columns


def stalls_of(where: str) -> list[dict[Place, float]]:
    """Return the percentage of samples by line of each profile in the journal beside a file, the last first."""
    file = where.partition(":")[0]
    folder = os.path.join(file if os.path.isdir(file) else os.path.dirname(os.path.abspath(file)), ".kiln")
    stalls: list[dict[Place, float]] = []
    for record in Journal(folder).read()[0]:
        if record.kind == "profile" and record.more.get("prof_type") == "ncu":
            counts: collections.Counter[Place] = collections.Counter()
            for kernel in record.more["kernels"]:
                for one in kernel["lines"]:
                    counts[os.path.normpath(one["file"]), one["line"]] += sum(one["counts"].values())
            stalls.insert(
                0, {place: round(100 * count / counts.total(), 1) for place, count in counts.items() if count}
            )
    return stalls


# --- two configs -----------------------------------------------------------------------------------------------------

_NUMBERS = re.compile(r"%[\w.#:]+|\b[UR]*R\d+|\bU?P\d\b|0x[0-9a-f]+|`?\(?\.?\$?L_?_?\w+\)?|!\d+|\bB\d\b|\d+")


def _diffs(units: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where the texts of the first unit differ from those of another config, names of values aside."""
    diffs: dict[str, Any] = {}
    for number, other in enumerate(units[1:], 1):
        first = next((n for n, unit in enumerate(units[:number]) if unit["name"] == other["name"]), None)
        if first is None or units[first]["config"] == other["config"]:
            continue
        texts = {f"{text['kind']}/{text['title']}": text for text in units[first]["texts"]}
        by_key: dict[str, Any] = {}
        for text in other["texts"]:
            key = f"{text['kind']}/{text['title']}"
            if key in texts:
                a, b = ([_NUMBERS.sub("#", line).strip() for line in one["lines"]] for one in (texts[key], text))
                matcher = difflib.SequenceMatcher(None, a, b)
                by_key[key] = [[int(tag == "equal"), *rest] for tag, *rest in matcher.get_opcodes()]
        diffs[f"{first}:{number}"] = by_key
    return diffs
