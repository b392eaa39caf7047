"""What pages name exists: identifiers, files, programs with their options, functions and fields of the library."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import Problem, Tree

FOREIGN = {
    "cutlass",
    "llvmlite",
    "numpy",
    "pytest",
    "hypothesis",
    "ruff",
    "pyright",
    "rich",
    "libcuda",
    "ptxas",
    "nvdisasm",
    "python3",
}
"""Names that are not ours."""
NAME = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*")
PROGRAM = re.compile(r"python ((?:benchmarks|tests|tools)/[\w/]+\.py)((?: [^`\n#|&]*)?)")
TOPS = ("src/", "kiln/", "tests/", "tools/", "docs/", "benchmarks/", "examples/")
PATH = re.compile(r"(?<![\w/.<-])((?:[\w.-]+/)+[\w.-]*)")
ENDS = (".py", ".md", ".json", ".txt", ".ipynb")
CONFIG = re.compile(r"(?:kernels\.)?(\w+Config)\(([\w\s,]+)\)")
LIBRARY = "docs/kernels.md"


def check(tree: Tree) -> Iterator[Problem]:
    """Yield names of pages that lead nowhere."""
    yield from identifiers(tree)
    for page in tree.pages():
        for path in paths(tree.text(page)):
            if not exists(tree, path, page):
                yield tree.at(page, 0, f"names {path}, which does not exist")
        for command in commands(tree, tree.text(page)):
            yield tree.at(page, 0, f"has a command that does not exist: {command}")
    if (tree.root / LIBRARY).exists():
        yield from library_names(tree)


def identifiers(tree: Tree) -> Iterator[Problem]:
    """Yield names in code, on the pages for contributors, that occur nowhere in the sources."""
    architecture = tree.root / "docs" / "architecture.md"
    pages = [page for page in tree.pages() if page == architecture or page.parent.name == "project"]
    texts = [tree.text(file) for top in ("src/kiln", "tests", "tools", "benchmarks") for file in tree.files(top)]
    settings = tree.root / "pyproject.toml"
    words = {*re.findall(r"\w+", "\n".join([*texts, settings.read_text() if settings.exists() else ""]))}
    words |= {part for file in (tree.root / "src").rglob("*") for part in (file.name, file.stem)}
    for page in [*pages, *(page for page in tree.pages() if page.name == "CONTRIBUTING.md")]:
        text = re.sub(r"```.*?```", "", tree.text(page), flags=re.DOTALL)
        codes = [code for code in re.findall(r"`([^`\n]+)`", text) if NAME.fullmatch(code)]
        for name in sorted({part for code in codes for part in code.split(".")} - words - FOREIGN):
            yield tree.at(page, 0, f"names `{name}`, which is not in the sources")


def paths(text: str) -> Iterator[str]:
    """Yield the paths in a page's code and links: those of a folder on top, and those that end as our files do."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    yield from filter(None, links)
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from (path for path in PATH.findall(code) if path.startswith(TOPS) or path.endswith(ENDS))


def exists(tree: Tree, path: str, page: Path) -> bool:
    """Return whether a path exists as a whole, or below `src/kiln`, `dialects` or the folder of the page."""
    source = tree.root / "src" / "kiln"
    return any((base / path).exists() for base in (tree.root, source.parent, source, source / "dialects", page.parent))


def commands(tree: Tree, text: str) -> Iterator[str]:
    """Yield the programs of a page that do not exist, and options that they do not have."""
    for program, arguments in PROGRAM.findall(text):
        source = tree.root / program
        if not source.exists():
            yield program
            continue
        options = re.findall(r"(?<=\s)--[a-z][\w-]*", arguments)
        yield from (f"{program} {option}" for option in options if option not in tree.text(source))


def library_names(tree: Tree) -> Iterator[Problem]:
    """Yield names and fields on the page of the kernel library that the library does not have."""
    from kiln import kernels

    page = tree.root / LIBRARY
    whole = tree.text(page)
    names = set(re.findall(r"\bkernels\.([A-Za-z]\w*)(?![\w/]*[/.])", whole)) - {"md", "Implementation"}
    for name in sorted(names):
        if not hasattr(kernels, name):
            yield tree.at(page, 0, f"names kernels.{name}, which does not exist")
    text = re.sub(r"```.*?```", "", whole, flags=re.DOTALL)
    listed = [(name, [x.strip() for x in fields.split(",")]) for name, fields in CONFIG.findall(text)]
    tables = re.findall(r"^\| `(\w+Config)` \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    if len({name for name, _ in listed}) < 6 or len(tables) != 4:
        yield tree.at(page, 0, f"has the fields of {len(listed)} configs and {len(tables)} tables: more than 5, and 4")
    listed += [
        (name, [x for row in rows.splitlines() for x in re.findall(r"`(\w+)`", row.split(" | ")[0])])
        for name, rows in tables
    ]
    for name, fields in listed:
        own = [field.name for field in dataclasses.fields(getattr(kernels, name))]
        if fields != own:
            yield tree.at(page, 0, f"says that {name} has the fields {fields}; it has {own}")
