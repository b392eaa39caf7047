"""Pages of the knowledge base: Markdown with a head in YAML, and their index.

A page is true as long as its `evidence` holds: claims that claims.py measures. This module reads and writes pages; it
runs nothing.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.text import did_you_mean
from ..core.text import near_path as shown

KINDS = {
    "optimization": "docs/knowledge/optimizations",
    "anti-pattern": "docs/knowledge/anti-patterns",
    "cute-dsl optimization": "docs/knowledge/languages/cute-dsl/optimizations",
    "cute-dsl anti-pattern": "docs/knowledge/languages/cute-dsl/anti-patterns",
}
"""Kinds of pages and their folders: what holds for any language, and what is about CuTe's."""
FIELDS = ("title", "kind", "when", "arch", "metrics", "source", "status", "evidence")
OPTIONAL_FIELDS = ("also",)
"""`also`: other words for the subject of the page, which `kiln kb search` finds it by."""
STATUSES = {
    "measured": "every claim was measured where it is about, and held",
    "unmeasured": "a claim has not been measured yet",
    "refuted": "a claim did not hold when it was last measured",
}
SECTIONS = (
    "When to Apply",
    "Mechanism",
    "Affected Metrics",
    "Implementation",
    "Source",
    "Performance Evidence",
    "Generalization",
    "Pitfalls",
    "Interactions",
)
INDEX = "docs/knowledge/README.md"
CASES = "docs/knowledge/cases"
BEGIN = "<!-- evidence: written by `kiln kb check` -->"
END = "<!-- end of evidence -->"
EVIDENCE_FIELDS = {"claim", "case", "problem", "change", "metric", "expect", "on", "arch"}
_HEAD = re.compile(r"\A---\n(.*?)^---\n", re.DOTALL | re.MULTILINE)


class PageError(Exception):
    """A page is wrong, or there is none of a name. The verb prints it and ends with exit status 2."""

    def __init__(self, message: str, path: Path | None, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.line}: {self.message}" if self.path else self.message


# --- expectations ----------------------------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPECT = re.compile(r"(==|!=|<=|>=|<|>)\s*(?:(-?[\d.]+(?:e-?\d+)?)(?:\s*\*\s*(before))?|(before))")


@dataclasses.dataclass(frozen=True)
class Expectation:
    """An expectation of a number, `>= 1.05`, `<= 0.5 * before`, `< before`, or of a text: `has race`."""

    text: str

    @property
    def wrong(self) -> str | None:
        """Why this cannot be read, or None."""
        if self.text.startswith("has ") or _EXPECT.fullmatch(self.text):
            return None
        form = "an operator (== != < <= > >=) with a number, `before`, or NUMBER * before"
        return f"expect: {self.text!r} is neither `has TEXT` nor {form}"

    @property
    def needs_before(self) -> bool:
        return not self.text.startswith("has ") and "before" in self.text

    def holds(self, value: object, before: Any = None) -> bool:
        """Return whether a value meets the expectation."""
        if self.text.startswith("has "):
            return self.text[4:].strip() in str(value)
        match = _EXPECT.fullmatch(self.text)
        assert match is not None
        sign, number, times, alone = match.groups()
        limit = before if alone else float(number) * (before if times else 1)
        return _OPERATORS[sign](value, limit)


@dataclasses.dataclass(frozen=True)
class Claim:
    """An item of evidence: what a metric of a case is, or becomes by a change."""

    claim: str
    case: str
    metric: str
    expect: Expectation
    problem: Any = None
    """A number of the case's problems, or fields that differ from the first."""
    before: dict[str, Any] | None = None
    """A config, and `after` the one that the claim is about; None for the case's first."""
    after: dict[str, Any] | None = None
    baseline: str | None = None
    """A baseline of the case to compare with, in place of `before`."""
    on: str | None = None
    """Part of the name of the GPU it is about; None if none is needed."""
    arch: str = "sm_90a"
    line: int = 1

    def __str__(self) -> str:
        return f"{self.claim} ({self.metric} {self.expect.text})"


# --- pages -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Page:
    path: Path
    head: dict[str, Any]
    claims: list[Claim]
    text: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def title(self) -> str:
        return self.head["title"]

    def rows(self) -> dict[str, list[str]]:
        """Return the rows of the evidence table, by claim and expectation."""
        match = re.search(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", self.text, re.DOTALL)
        rows = [_cells(line) for line in (match.group(1) if match else "").splitlines() if line.startswith("|")]
        return {f"{row[0]} {row[4]}": row for row in rows[2:] if len(row) == 6}

    def written(self, results: dict[str, list[str]]) -> str:
        """Return the page with results, rows by claim and expectation, in its table; others keep their rows."""
        rows = self.rows()
        lines = ["| claim | on | before | after | expected | found |", "|---|---|--:|--:|---|---|"]
        results_of_rows: list[str] = []
        for claim in self.claims:
            row = row_of(claim)
            key = f"{row[0]} {row[4]}"
            row = results.get(key) or rows.get(key) or row
            results_of_rows.append(row[5])
            lines.append("| " + " | ".join(row) + " |")
        table = f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}"
        status = "refuted" if any(each.startswith("does not") for each in results_of_rows) else "measured"
        if any(each == UNMEASURED for each in results_of_rows):
            status = "unmeasured"
        text = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table, self.text, flags=re.DOTALL)
        return re.sub(r"(?m)^status: .*$", f"status: {status}", text, count=1)


UNMEASURED = "not measured yet"


def row_of(claim: Claim, before: str = "", after: str = "", result: str = UNMEASURED) -> list[str]:
    """Return a row of the evidence table."""
    cells = (claim.claim, claim.on or "any machine", before, after, f"{claim.metric} {claim.expect.text}", result)
    return [cell.replace("|", "\\|") for cell in cells]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def root(start: Path | None = None) -> Path:
    """Return the nearest folder up from here with a knowledge base; this one, if none has."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "docs" / "knowledge").is_dir():
            return folder
    return here


def read_from(folder: Path) -> list[Path]:
    """Return where to look things up: the project's knowledge base, and Kiln's own, of the checkout or the wheel."""
    here = Path(__file__).resolve()
    return [
        each for each in dict.fromkeys((folder, here.parents[4], here.parent)) if (each / "docs/knowledge").is_dir()
    ]


def files(folder: Path) -> list[Path]:
    return sorted(path for place in KINDS.values() for path in (folder / place).glob("*.md"))


def pages(folder: Path) -> list[Page]:
    """Return all pages of a project, by folder and name."""
    return [read(path, folder) for path in files(folder)]


def find(folder: Path, name: str) -> Page:
    """Return a page by its name or path."""
    return read(path_of(files(folder), name), folder)


def path_of(paths: Sequence[Path], name: str) -> Path:
    """Return the path with this name among those of pages."""
    matching = [path for path in paths if name in (path.stem, path.name, shown(path))]
    if not matching:
        hint = did_you_mean(name, [path.stem for path in paths]) or "find pages with: kiln kb search WORD ..."
        raise PageError(f"there is no page {name!r}; {hint}", None)
    return matching[0]


def read(path: Path, folder: Path) -> Page:
    """Read a page and check its head, its sections, and that its code is the case's."""
    import yaml  # an optional package

    text = path.read_text()
    match = _HEAD.match(text)
    if not match:
        raise PageError("a page begins with `---`, its head in YAML, and `---`", path)
    try:
        head = yaml.safe_load(match.group(1))
        lines = _lines(yaml.compose(match.group(1)))
    except yaml.YAMLError as reason:
        mark = getattr(reason, "problem_mark", None)
        said = getattr(reason, "problem", None) or str(reason)
        raise PageError(f"the head is not YAML: {said}", path, mark.line + 2 if mark else 1) from None
    if not isinstance(head, dict):
        raise PageError("the head is a mapping", path)

    def line(*where: object) -> int:
        return lines.get(where, lines.get(where[:1], 0)) + 2

    for name in head:
        if name not in (*FIELDS, *OPTIONAL_FIELDS):
            names = ", ".join((*FIELDS, *OPTIONAL_FIELDS))
            raise PageError(f"{name!r} is not a field of pages; there are: {names}", path, line(name))
    missing = [name for name in FIELDS if head.get(name) in (None, "", [])]
    if missing:
        raise PageError(f"{missing[0]!r} is missing", path, line(missing[0]))
    if head["kind"] not in KINDS:
        raise PageError(f"kind: {head['kind']!r} is not one of: {', '.join(KINDS)}", path, line("kind"))
    if path.parent != (folder / KINDS[head["kind"]]).resolve() and path.parent != folder / KINDS[head["kind"]]:
        raise PageError(f"kind: a page of this kind is in {KINDS[head['kind']]}", path, line("kind"))
    if head["status"] not in STATUSES:
        raise PageError(f"status: {head['status']!r} is not one of: {', '.join(STATUSES)}", path, line("status"))
    if not isinstance(head["evidence"], list):
        raise PageError("evidence: a list of claims", path, line("evidence"))
    claims = [_claim(item, path, line("evidence", number)) for number, item in enumerate(head["evidence"])]
    page = Page(path, head, claims, text)
    _check_body(page, folder)
    return page


def _claim(item: object, path: Path, line: int) -> Claim:
    if not isinstance(item, dict):
        raise PageError("evidence: a claim is a mapping", path, line)
    item = {"on" if name is True else name: value for name, value in item.items()}  # YAML reads a plain `on` as true
    for name in item:
        if name not in EVIDENCE_FIELDS:
            raise PageError(f"evidence: {name!r} is not one of: {', '.join(sorted(EVIDENCE_FIELDS))}", path, line)
    for name in ("claim", "case", "metric", "expect"):
        if name not in item:
            raise PageError(f"evidence: {name!r} is missing", path, line)
    expect = Expectation(str(item["expect"]).strip())
    if expect.wrong:
        raise PageError(f"evidence: {expect.wrong}", path, line)
    change = item.get("change") or {}
    if not isinstance(change, dict) or not change.keys() <= {"from", "to", "baseline"}:
        raise PageError("evidence: change has `from` and `to`, configs, or `baseline` in place of `from`", path, line)
    wants_before = expect.needs_before or item["metric"] == "ratio"
    if wants_before and "from" not in change and "baseline" not in change:
        raise PageError("evidence: the change says neither `from` nor `baseline`: nothing to compare with", path, line)
    optional = {name: item[name] for name in ("problem", "on", "arch") if item.get(name) is not None}
    return Claim(
        item["claim"],
        item["case"],
        str(item["metric"]),
        expect,
        before=change.get("from"),
        after=change.get("to"),
        baseline=change.get("baseline"),
        line=line,
        **optional,
    )


def _lines(node: Any, where: tuple[object, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Return the line of each field and of each claim, counted from 0."""
    by_place: dict[tuple[Any, ...], int] = {}
    for key, value in getattr(node, "value", ()) if node is not None and node.id == "mapping" else ():
        by_place[(*where, key.value)] = key.start_mark.line
        if value.id == "sequence":
            by_place |= {(*where, key.value, number): item.start_mark.line for number, item in enumerate(value.value)}
    return by_place


def _check_body(page: Page, folder: Path) -> None:
    lines = page.text.splitlines()
    heads = [(line[3:].strip(), number) for number, line in enumerate(lines, 1) if line.startswith("## ")]
    if tuple(name for name, _ in heads) != SECTIONS:
        names = [name for name, _ in heads]
        wrong = next((name for name in SECTIONS if name not in names), names[0] if names else "")
        raise PageError(f"the sections are, in this order: {', '.join(SECTIONS)}; see {wrong!r}", page.path)
    if f"# {page.title}" not in lines:
        raise PageError(f"the page's heading is its title, `# {page.title}`", page.path)
    if BEGIN not in page.text or END not in page.text:
        line = dict(heads)["Performance Evidence"]
        raise PageError(f"the section has the marks `{BEGIN}` and `{END}`", page.path, line)
    cases = {case_file(folder, claim.case) for claim in page.claims}
    for case in cases:
        if not case.is_file():
            raise PageError(f"evidence: there is no case {shown(case)}", page.path, page.claims[0].line)
    # A page shows what is measured: its code consists of lines of its cases.
    source = {line.strip() for case in cases for line in case.read_text().splitlines()}
    for number, line in _code(lines):
        if line.strip() and line.strip() not in source and not line.strip().startswith("#"):
            files = ", ".join(sorted(map(shown, cases)))
            raise PageError(f"{line.strip()!r} is not a line of {files}", page.path, number)


def _code(lines: list[str]) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            inside = line == "```python"
        elif inside:
            yield number, line


def case_file(folder: Path, case: str) -> Path:
    """Return the file of a case: a name of `docs/knowledge/cases`, or a path from the project's folder."""
    return folder / case if "/" in case else folder / CASES / f"{case}.py"


# --- the index, and a new page ---------------------------------------------------------------------------------------


def index(folder: Path) -> str:
    """Return the text of the index."""
    parts = [
        "# Knowledge",
        "Patterns that make kernels fast, and mistakes that break them. Each page says when it applies, shows code that "
        "runs, and makes\n"
        "claims. `kiln kb check` measures the claims anew. On any machine it counts instructions, registers, bank "
        "conflicts, findings\n"
        "of the sanitizer and numerical errors. Times need the GPU that the page names. A page whose claim does not hold "
        "is `refuted`.",
        "`kiln kb search WORDS` finds pages, documentation, errors and examples. `kiln kb new` begins a page, and "
        "`kiln kb index` makes\n"
        "this index.",
    ]
    all_pages = pages(folder)
    for kind in KINDS:
        mine = [page for page in all_pages if page.head["kind"] == kind]
        if not mine:
            continue
        parts.append(f"## {kind[0].upper()}{kind[1:]}s")
        base = (folder / INDEX).parent
        lines = ["| page | when | architectures | status |", "|---|---|---|---|"]
        for page in mine:
            cells = [f"[{page.title}]({page.path.relative_to(base).as_posix()})"]
            lines.append(f"| {' | '.join([*cells, *(page.head[name] for name in ('when', 'arch', 'status'))])} |")
        parts.append("\n".join(lines))
    limits = sorted((folder / INDEX).parent.glob("limits/*.md"))
    if limits:
        titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in limits]
        lines = [f"- [{title}](limits/{page.name})" for title, page in zip(titles, limits, strict=True)]
        parts += ["## Limits", "Measured bounds, and what was tried without gain:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def new(title: str, kind: str, evidence: Sequence[Mapping[str, object]], source: str = "TODO") -> str:
    """Return the text of a page to fill in."""
    import yaml  # an optional package

    title = " ".join(title.split())
    head = {
        "title": title,
        "kind": kind,
        "when": "TODO: one line",
        "arch": "sm_80+",
        "metrics": ["TODO"],
        "source": source,
        "status": "unmeasured",
        "evidence": evidence,
    }
    hints = {
        "When to Apply": "- TODO: which kernels, which shapes, which bottleneck",
        "Mechanism": "TODO: why it works, and by which functions",
        "Affected Metrics": "- TODO",
        "Implementation": "TODO: lines of the case, in a block of Python",
        "Source": source,
        "Performance Evidence": f"{BEGIN}\n{END}",
        "Generalization": "TODO: what holds on other devices and for other kernels",
        "Pitfalls": "- TODO",
        "Interactions": "- TODO: other pages",
    }
    body = "\n\n".join(f"## {name}\n\n{text}" for name, text in hints.items())
    return f"---\n{yaml.safe_dump(head, sort_keys=False, width=120)}---\n\n# {title}\n\n{body}\n"
