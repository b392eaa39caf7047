"""Finds pages, documentation, errors and examples by words, and examples by goal."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import pages

EXAMPLES = "docs/knowledge/examples.json"
_MOST_OF_A_FILE = 3
"""How many places of one file are shown: more would hide other files."""
_INTERNAL = ("architecture", "base-dsl", "dialect", "native")
"""Pages about Kiln's own parts, which come after those about kernels; so do all in `docs/project`."""

_ALSO = {
    "blackwell": "tcgen05 umma tensor memory tmem sm_100 cta pairs",
    "hopper": "tma wgmma mbarrier sm_90 clusters warp specialization persistent",
    "sanitizer": "race condition racecheck memcheck out of bounds uninitialized",
    "cpu-target": "without a gpu emulator interpreter simulator",
    "bridges": "pytorch jax torch.compile autograd custom operator export aot",
    "caching": "recompile retrace compile again specialization stale disk cache",
    "memory-model": "fence proxy happens-before release acquire ordering",
    "precision": "accuracy rounding ulp tolerance fma tf32",
    "measuring": "benchmark timing methodology noise clocks",
    "kernels": "gemm matmul attention softmax norm library",
}
"""Other words for the subjects of pages of the documentation, which have no head."""
_STOP = (
    "a",
    "an",
    "and",
    "are",
    "can",
    "do",
    "does",
    "for",
    "from",
    "how",
    "i",
    "in",
    "is",
    "it",
    "my",
    "of",
    "on",
    "or",
    "the",
    "to",
    "what",
    "when",
    "where",
    "why",
    "with",
    "write",
)

SYNONYMS = (
    ("vectorized", "vector", "wide", "16-byte", "128-bit"),
    ("load", "read", "access"),
    ("store", "write"),
    ("race", "hazard", "nothing orders the two"),
    ("barrier", "sync_threads", "syncthreads", "synchronize"),
    ("deadlock", "hang", "stuck"),
    ("gemm", "matmul", "matrix multiplication"),
    ("attention", "sdpa", "flashattention"),
    ("layernorm", "rmsnorm", "norm"),
    ("smem", "shared memory"),
    ("gmem", "global memory", "dram"),
    ("rmem", "register"),
    ("tmem", "tensor memory"),
    ("cta", "thread block"),
    ("autotune", "tune", "tuning"),
    ("nsight", "ncu", "profile"),
    ("oob", "out of bounds", "past the end"),
    ("mask", "predicate", "ragged", "odd"),
    ("double buffering", "multistage", "stages", "prefetch"),
    ("specialization", "specialized", "roles"),
    ("half", "fp16", "f16", "float16"),
    ("bf16", "bfloat16"),
    ("fp8", "float8", "e4m3", "e5m2"),
    ("occupancy", "registers per thread"),
    ("reduce", "reduction", "sum"),
    ("cublas", "cudnn"),
    ("unaligned", "misaligned"),
    ("uninitialized", "nobody has written"),
    ("activation", "epilogue"),
)
"""Words and phrases of the field that mean the same, or nearly: a search for one finds places with another."""


_BRITISH = re.compile(r"(?i)(?<=\w{4})(i)s(ed|es|e|ing|ation)$")
"""An ending that pages spell with a z: vectorised, synchronisation."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Something that can be found: a section of a page, a row of a table, an example."""

    path: Path
    line: int
    title: str
    text: str
    weight: float = 1
    """The weight of its words; those of the title count more."""
    also: str = ""
    """Other words for its subject, from the head of a page."""


def search(among: Iterable[Place], words: list[str], most: int = 12) -> list[Place]:
    """Return the places that have all words, then those that have synonyms or some of the words, best first."""
    words = [_BRITISH.sub(r"\1z\2", word) for word in words]
    # A checkout and an installed Kiln have the same pages; the first of two equal places counts.
    places = list({(place.title, place.text): place for place in reversed(list(among))}.values())[::-1]
    matches = _full_text(places, words)
    ranked = _by_substrings(places, words) if matches is None else matches
    of_file: collections.Counter[Path] = collections.Counter()
    shown: list[Place] = []
    for place in ranked:
        of_file[place.path] += 1
        if of_file[place.path] <= _MOST_OF_A_FILE:
            shown.append(place)
    return shown[:most]


def _full_text(places: list[Place], words: list[str]) -> list[Place] | None:
    """Return what SQLite's FTS5 finds, which knows word stems and rare words; None where a Python lacks it."""
    try:
        import sqlite3

        base = sqlite3.connect(":memory:")
    except ImportError:
        return None
    with contextlib.closing(base):
        try:
            base.execute("CREATE VIRTUAL TABLE places USING fts5(title, also, text, tokenize='porter unicode61')")
        except sqlite3.OperationalError:
            return None
        rows = [(number, place.title, place.also, place.text) for number, place in enumerate(places)]
        base.executemany("INSERT INTO places(rowid, title, also, text) VALUES (?, ?, ?, ?)", rows)
        own = [[word] for word in words if any(each.isalnum() for each in word) and word.lower() not in _STOP]
        wide = [_meant(word) for (word,) in own]
        matching: dict[int, None] = {}
        for groups, operator, ending in ((own, "AND", ""), (wide, "AND", ""), (wide, "OR", ""), (own, "OR", "*")):
            if not groups or (operator == "OR" and matching):
                break
            texts = [" OR ".join(_quoted(each) + ending for each in group) for group in groups]
            query = f" {operator} ".join(f"({text})" for text in texts)
            # bm25 is the lower, the better; the numbers are the weights of title, other words and text.
            rank = "SELECT rowid, bm25(places, 6.0, 8.0, 1.0) FROM places WHERE places MATCH ?"
            scored = sorted((score * places[number].weight, number) for number, score in base.execute(rank, [query]))
            matching |= dict.fromkeys(number for _, number in scored)
    return [places[number] for number in matching]


def _quoted(phrase: str) -> str:
    return '"' + phrase.replace('"', '""') + '"'


def _meant(word: str) -> list[str]:
    """Return a word and its synonyms; a plural or another ending of one counts as the word."""
    stem = word.lower().rstrip("s")
    return [word, *(other for group in SYNONYMS if any(each.rstrip("s") == stem for each in group) for other in group)]


def _by_substrings(places: list[Place], words: list[str]) -> list[Place]:
    """Return the places that have most of the words as parts of theirs, best first: what needs no FTS5."""
    lower = [word.lower() for word in words]
    scored: list[tuple[int, float, Place]] = []
    for place in places:
        title = f"{place.title} {place.also}".lower()
        text = place.text.lower()
        hits = [3 * (word in title) + min(3, text.count(word)) for word in lower]
        words_here = sum(map(bool, hits))
        if words_here:
            # The shorter of two equal places is more specific.
            scored.append((words_here, place.weight * sum(hits) + 1 / (1 + len(text)), place))
    most_words = max((words_here for words_here, _, _ in scored), default=0)
    best = sorted((each for each in scored if each[0] == most_words), key=lambda each: -each[1])
    return [place for _, _, place in best]


def places(folder: Path) -> Iterator[Place]:
    """Yield everything that can be found."""
    page_files = set(pages.files(folder))
    for path in sorted((folder / "docs").glob("**/*.md")):
        if path in page_files:
            yield _whole(path)
        elif path != folder / pages.INDEX and "data" not in path.relative_to(folder).parts:
            yield from _sections(path)
    for example in examples(folder)["examples"]:
        text = f"{example['teaches']} {' '.join(example['goals'])} {example['runs']}"
        yield Place(folder / EXAMPLES, example["line"], example["path"], text)


def _whole(path: Path) -> Place:
    """Return a page of the knowledge base, at its heading."""
    head, _, body = path.read_text().partition("\n# ")
    title, _, text = body.partition("\n")
    also = re.search(r"(?m)^also: (.*)$", head)
    return Place(
        path, head.count("\n") + 2, title, text.partition("## Interactions")[0], 2, also.group(1) if also else ""
    )


def _sections(path: Path) -> Iterator[Place]:
    """Yield the sections of a page; of the reference also each table row, an error or a function, by its first cell."""
    title = path.stem
    start = 1
    lines = []
    inside = False
    internal = path.stem in _INTERNAL or path.parent.name == "project"
    weight, also = (0.5, "") if internal else (1, _ALSO.get(path.stem, ""))
    rows = path.stem == "troubleshooting" or path.stem.startswith("api-")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        if not inside and re.match(r"#{1,3} ", line):
            if lines:
                yield Place(path, start, title, "\n".join(lines), weight * (1.5 if also else 1), also)
                also = ""  # the beginning of the page is about all of it
            title = f"{path.stem}: {line.lstrip('# ')}"
            start = number
            lines = []
        elif not inside and rows and line.startswith("| "):
            yield Place(path, number, line.split("|")[1].strip(), line, weight)
        else:
            lines.append(line)
    if lines:
        yield Place(path, start, title, "\n".join(lines), weight, also)


def examples(folder: Path) -> dict[str, Any]:
    """Return the index of examples: `examples`, each with its line, and `paths`, by goal."""
    path = folder / EXAMPLES
    if not path.is_file():
        return {"examples": [], "paths": {}}
    text = path.read_text()
    try:
        index = json.loads(text)
    except ValueError as reason:
        raise pages.PageError(f"no JSON: {reason}", path, getattr(reason, "lineno", 1)) from None
    numbered = [(number, re.search(r'"path": "([^"]*)"', line)) for number, line in enumerate(text.splitlines(), 1)]
    lines = {match.group(1): number for number, match in numbered if match}
    for example in index["examples"]:
        example["line"] = lines.get(example["path"], 1)
    return index
