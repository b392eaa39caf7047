"""Finds pages, documentation, errors and examples by words, and examples by goal."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import pages

EXAMPLES = "docs/knowledge/examples.yaml"


@dataclasses.dataclass(frozen=True)
class Place:
    """Something that can be found: a section of a page, a row of a table, an example."""

    path: Path
    line: int
    title: str
    text: str
    weight: int = 1
    """The weight of its words; those of the title count three times."""


def search(among: Iterable[Place], words: list[str], most: int = 12) -> list[Place]:
    """Return the places that have all words (if none has, most of them), best first."""
    wanted = [word.lower() for word in words]
    scored: list[tuple[int, float, Place]] = []
    for place in among:
        title, text = place.title.lower(), place.text.lower()
        hits = [3 * (word in title) + min(3, text.count(word)) for word in wanted]
        found = sum(map(bool, hits))
        if found:
            # The shorter of two equal places is more specific.
            scored.append((found, place.weight * sum(hits) + 1 / (1 + len(text)), place))
    most_words = max((found for found, _, _ in scored), default=0)
    best = sorted((each for each in scored if each[0] == most_words), key=lambda each: -each[1])
    return [place for _, _, place in best[:most]]


def places(folder: Path) -> Iterator[Place]:
    """Yield everything that can be found."""
    known = set(pages.files(folder))
    for path in sorted((folder / "docs").glob("**/*.md")):
        if path in known:
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
    return Place(path, head.count("\n") + 2, title, text.partition("## Interactions")[0], 2)


def _sections(path: Path, weight: int = 1) -> Iterator[Place]:
    """Yield the sections of a page, and each table row of the troubleshooting page."""
    title, start, lines, inside = path.stem, 1, [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
        if not inside and re.match(r"#{1,3} ", line):
            if lines:
                yield Place(path, start, title, "\n".join(lines), weight)
            title, start, lines = f"{path.stem}: {line.lstrip('# ')}", number, []
        elif not inside and line.startswith("| ") and path.stem == "troubleshooting":
            yield Place(path, number, line.split("|")[1].strip(), line, 2 * weight)
        else:
            lines.append(line)
    if lines:
        yield Place(path, start, title, "\n".join(lines), weight)


def examples(folder: Path) -> dict[str, Any]:
    """Return the index of examples: `examples`, each with its line, and `paths`, by goal."""
    import yaml  # an optional package

    path = folder / EXAMPLES
    if not path.is_file():
        return {"examples": [], "paths": {}}
    text = path.read_text()
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as reason:
        mark = getattr(reason, "problem_mark", None)
        raise pages.PageError(f"no YAML: {reason}", path, mark.line + 1 if mark else 1) from None
    numbered = [(number, line.partition("path:")) for number, line in enumerate(text.splitlines(), 1)]
    lines = {path.strip(" ,"): number for number, (_, found, path) in numbered if found}
    for example in found["examples"]:
        example["line"] = lines.get(example["path"], 1)
    return found
