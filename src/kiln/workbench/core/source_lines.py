"""Maps each line of MLIR, LLVM IR, PTX and SASS, as compilers print them, to the line of the program it comes from.

Every reader returns a `Text`: lines for people, without the debug information, and the place of each.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator

from ..._support import file_names
from ...hardware import source_paths

Place = tuple[str, int]
"""A file and a line of it, from 1."""


@dataclasses.dataclass
class Text:
    """Lines and their places; a place is None for lines that no line of the program led to."""

    lines: list[str] = dataclasses.field(default_factory=list)
    places: list[Place | None] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)
    """Labels that replace line numbers, such as addresses of SASS."""
    calls: set[tuple[Place, Place]] = dataclasses.field(default_factory=set)
    """Places in inlined functions, each with the place of the call."""

    def add(self, line: str, place: Place | None, label: str = "") -> None:
        self.lines.append(line)
        self.places.append(place)
        self.labels.append(label)


# --- MLIR ------------------------------------------------------------------------------------------------------------

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_DEBUG_ALIAS = re.compile(r"^#(?:loc|di_)\w*(?: =|\Z)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def read_mlir(text: str) -> Text:
    """Read MLIR with locations (`get_asm(enable_debug_info=True)`)."""
    aliases = {alias[1]: alias[2] for line in text.splitlines() if (alias := _ALIAS.match(line))}
    by_words: dict[str, list[Place]] = {}

    def chain(words: str) -> list[Place]:
        if words not in by_words:
            by_words[words] = list(_chain(words, aliases))
        return by_words[words]

    result = Text()
    open_lines: list[list[int]] = []  # lines of operations with open regions, whose location follows the last one
    for raw in text.splitlines():
        if _DEBUG_ALIAS.match(raw):
            continue
        line, last = _without_locations(raw)
        mine: list[int] = [len(result.lines)]
        result.add(line, None)
        if line.lstrip().startswith("}") and open_lines:
            mine = [*open_lines.pop(), *mine]
        if line.endswith("{"):
            open_lines.append(mine)
        elif last:
            places = chain(last)
            result.calls.update(itertools.pairwise(places))
            for number in mine:
                result.places[number] = places[0] if places else None
    return result


def _without_locations(line: str) -> tuple[str, str]:
    """Return a line without its `loc(...)`, and the content of the last one if it ends the line."""
    kept = ""
    at = 0
    last = ""
    while (start := _find_location(line, at)) >= 0:
        end = _closing(line, start + len(" loc"))
        kept += line[at:start]
        last = line[start + len(" loc(") : end] if end == len(line) - 1 else ""
        at = end + 1
    return kept + line[at:], last


def _find_location(line: str, at: int) -> int:
    """Return the index of the next ` loc(` outside strings."""
    start = line.find(" loc(", at)
    if start < 0 or '"' not in line[at:start]:
        return start
    strings = [match.span() for match in _STRING.finditer(line, at)]
    while start >= 0 and any(begin <= start < end for begin, end in strings):
        start = line.find(" loc(", start + 1)
    return start


def _closing(line: str, at: int) -> int:
    """Return the index of the parenthesis that closes the one at `at`."""
    depth = 0
    strings = {match.start(): match.end() for match in _STRING.finditer(line, at)}
    while at < len(line):
        if at in strings:
            at = strings[at]
            continue
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if not depth:
            return at
        at += 1
    return len(line) - 1


def _chain(words: str, aliases: dict[str, str]) -> Iterator[Place]:
    """Yield the places of a location: its own, then those of the calls that led there."""
    if words in aliases:
        yield from _chain(aliases[words], aliases)
    elif match := _FILE.match(words):
        if int(match[2]):
            yield _unescaped(match[1]), int(match[2])
    elif words.startswith("callsite("):
        callee, caller = _parts(words[len("callsite(") : -1], " at ")
        yield from _chain(callee, aliases)
        yield from _chain(caller, aliases)
    elif words.startswith("fused"):
        for part in _parts(words[words.rindex("[") + 1 : -1], ", "):
            if places := list(_chain(part, aliases)):
                yield from places
                return
    elif match := re.match(r'"(?:[^"\\]|\\.)*"\((.*)\)$', words):
        yield from _chain(match[1], aliases)


def _unescaped(text: str) -> str:
    r"""Return a path as MLIR and LLVM print it without escapes: `\22` is a quote."""

    def character(match: re.Match[bytes]) -> bytes:
        return b"\\" if match[1] == b"\\" else bytes.fromhex(match[1].decode())

    path = re.sub(rb"\\([0-9A-Fa-f]{2}|\\)", character, text.encode(errors="surrogateescape"))
    return os.path.normpath(file_names.from_utf8(path.decode(errors="surrogateescape")))


def _of_ptx(text: str) -> str:
    return os.path.normpath(source_paths.decoded(text))


def _parts(words: str, separator: str) -> list[str]:
    """Split at separators outside parentheses, brackets and strings."""
    parts = [""]
    depth = 0
    begin = 0
    at = 0
    strings = {match.start(): match.end() for match in _STRING.finditer(words)}
    while at < len(words):
        if at in strings:
            at = strings[at]
            continue
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(words[at], 0)
        if not depth and words.startswith(separator, at):
            parts[-1] = words[begin:at]
            parts.append("")
            begin = at = at + len(separator)
            continue
        at += 1
    parts[-1] = words[begin:]
    return parts


# --- LLVM IR ---------------------------------------------------------------------------------------------------------

_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_FIELD = re.compile(r'(\w+): (![0-9]+|"[^"]*"|[^,]+)')
_PLACED = re.compile(r",? !dbg (!\d+)")
_NAMED = re.compile(r"^!llvm\.(?:dbg|module\.flags|ident)")


def read_llvm(text: str) -> Text:
    """Read LLVM IR with debug metadata, which is left out."""
    metadata = filter(None, map(_METADATA.match, text.splitlines()))
    nodes = {match[1]: (match[2], dict(_FIELD.findall(match[3]))) for match in metadata}

    def file_of(name: str) -> str:
        while name in nodes:
            kind, fields = nodes[name]
            if kind == "DIFile":
                return _unescaped(os.path.join(fields["directory"].strip('"'), fields["filename"].strip('"')))
            name = fields.get("file") or fields.get("scope", "")
        return ""

    places: dict[str, Place | None] = {}

    def place_of(name: str) -> Place | None:
        if name not in places:
            kind, fields = nodes.get(name, ("", {}))
            line = int(fields.get("line", 0))
            file = file_of(fields.get("scope", ""))
            if kind == "DISubprogram":
                file = file_of(fields.get("file", ""))
            places[name] = (file, line) if file and line else None
        return places[name]

    result = Text()
    for raw in text.splitlines():
        if _METADATA.match(raw) or _NAMED.match(raw):
            continue
        match = _PLACED.search(raw)
        result.add(_PLACED.sub("", raw), place_of(match[1]) if match else None)
    return _without_blank_ends(result)


# --- PTX -------------------------------------------------------------------------------------------------------------

_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_PTX_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_PTX_NOISE = re.compile(r"^\s*(?:\.file\b|\$L__(?:tmp|func_\w*)\d+:|\.section\s+\.debug|// (?:begin|end) inline asm)")
_PTX_OTHER = re.compile(r"^\s*(?:\.(?!pragma)|[$\w]+:\s*$|[{}()]?\s*$|//)")


def read_ptx(text: str) -> Text:
    """Read PTX; an instruction's place is that of the `.loc` before it."""
    files = {match[1]: _of_ptx(match[2]) for line in text.splitlines() if (match := _PTX_FILE.match(line))}
    result = Text()
    place = None
    inside = 0
    for raw in text.splitlines():
        if match := _PTX_LOC.match(raw):
            place = (files[match[1]], int(match[2])) if int(match[2]) and match[1] in files else None
            continue
        if _PTX_NOISE.match(raw):
            continue
        inside += raw.count("{") - raw.count("}")
        if not inside:
            place = None
        result.add(raw.expandtabs(4).rstrip(), place if inside and not _PTX_OTHER.match(raw) else None)
    return _without_blank_ends(result)


# --- SASS ------------------------------------------------------------------------------------------------------------

_SASS_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_SASS_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?(\S.*?)\s*(?:;.*)?$")
_SASS_KERNEL = re.compile(r"^\.text\.(\S+):")


def read_sass(text: str) -> Text:
    """Read SASS as `nvdisasm -g -c` prints it: kernels, labels, instructions by address."""
    result = Text()
    place = None
    inside = False
    for raw in text.splitlines():
        if match := _SASS_KERNEL.match(raw):
            result.add(f"{match[1]}:", None)
            place = None
        elif match := _SASS_LINE.match(raw):
            here = (_of_ptx(match[1]), int(match[2]))
            if not inside:  # the lines after it are the calls that led there
                place = here if here[1] else None
            inside = bool(match[3])
            if inside:
                result.calls.add((here, (_of_ptx(match[3]), int(match[4]))))
        elif match := _SASS_CODE.match(raw):
            result.add(f"{(match[2] or '').strip():>5} {match[3]}", place, match[1])
            inside = False
        elif raw.startswith(".L_"):
            result.add(raw.strip(), None)
    return _without_padding(result)


def _without_padding(text: Text) -> Text:
    """Return SASS without the unreachable code behind each kernel: a branch to itself, and NOPs."""
    kept = Text(calls=text.calls)

    def drop_padding() -> None:
        while kept.lines and (instruction_of(kept.lines[-1]) in ("NOP", "BRA") or kept.lines[-1].startswith(".L_")):
            label = kept.lines[-2].rstrip(":") if len(kept.lines) > 1 else ""
            if "BRA" in kept.lines[-1] and f"({label})" not in kept.lines[-1]:
                return
            for part in (kept.lines, kept.places, kept.labels):
                part.pop()

    for line, place, label in zip(text.lines, text.places, text.labels):
        if not label and not line.startswith(".L_"):
            drop_padding()
        kept.add(line, place, label)
    drop_padding()
    return kept


def instruction_of(line: str) -> str:
    """Return the instruction's name in a line of `read_sass`, or ""."""
    match = re.match(r"^(?: +|@!?U?P\w+ +| *@!?U?P\w+ +)([A-Z][A-Z0-9_.a-z]*)", line)
    return match[1] if match else ""


_LIVE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/.*?// \|\s*(\d*)\s*\|")


def read_live_registers(text: str) -> dict[tuple[str, str], int]:
    """Return the number of live registers by kernel and address, as `nvdisasm -c -plr -lrm count` prints it."""
    live: dict[tuple[str, str], int] = {}
    kernel = ""
    for raw in text.splitlines():
        if match := _SASS_KERNEL.match(raw):
            kernel = match[1]
        elif (match := _LIVE.match(raw)) and match[2]:
            live[kernel, match[1]] = int(match[2])
    return live


def _without_blank_ends(text: Text) -> Text:
    """Return a text without blank lines at its ends and without two in a row."""
    kept = Text()
    for line, place, label in zip(text.lines, text.places, text.labels):
        if line.strip() or (kept.lines and kept.lines[-1].strip()):
            kept.add(line, place, label)
    while kept.lines and not kept.lines[-1].strip():
        for part in (kept.lines, kept.places, kept.labels):
            part.pop()
    return kept
