"""Rules that are not kept everywhere yet: how often each file or room may break them, numbers that only shrink."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from source_tree import Problem, Tree

COUNTS = "tools/lint/counts.json"
"""By rule and file, or room: how often the rule may be broken there. What is not listed keeps it."""

Counts = dict[str, dict[str, int]]


def allowed(tree: Tree) -> Counts:
    """Return the counts that are allowed."""
    path = tree.root / COUNTS
    return json.loads(path.read_text()) if path.exists() else {}


def over(tree: Tree, rule: str, problems: list[Problem]) -> list[Problem]:
    """Return the problems of each file that has more of them than it may."""
    most = allowed(tree).get(rule, {})
    counts = Counter(one.path for one in problems)
    return [
        one._replace(text=f"{one.text} ({counts[one.path]} in this file, {most.get(one.path, 0)} are allowed)")
        for one in problems
        if counts[one.path] > most.get(one.path, 0)
    ]


def over_by_room(tree: Tree, rule: str, counts: dict[str, int], advice: str) -> list[Problem]:
    """Return a problem for each room whose count is above what it may be."""
    most = allowed(tree).get(rule, {})
    return [
        Problem(room, 0, f"{rule}: {count}, and {most.get(room, 0)} are allowed; {advice}")
        for room, count in sorted(counts.items())
        if count > most.get(room, 0)
    ]


def lower(tree: Tree, now: Counts) -> int:
    """Return how many of the allowed numbers are above what there is now."""
    before = allowed(tree)
    return sum(count > now[rule].get(key, 0) for rule in now for key, count in before.get(rule, {}).items())


def lowered(tree: Tree, now: Counts) -> int:
    """Write the numbers that have become smaller, and return how many; no number grows, and none is added."""
    changed = lower(tree, now)
    if changed:
        smallest = {
            rule: {key: min(count, now[rule].get(key, 0)) for key, count in counts.items()}
            for rule, counts in allowed(tree).items()
        }
        write(tree.root / COUNTS, smallest)
    return changed


def write(path: Path, counts: Counts) -> None:
    """Write counts, a line for each that is not 0."""
    kept = {rule: {key: count for key, count in each.items() if count} for rule, each in counts.items()}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
