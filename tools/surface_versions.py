"""Which names each version of CuTe DSL had, as far as NVIDIA's examples and changelog say, and the table that shows it.

    python tools/surface_versions.py read CHECKOUT > tools/surface_versions.txt   # from a checkout of NVIDIA/cutlass with its tags
    python tools/surface_versions.py page [--check]                               # write docs/come-from/cute-dsl.md

A line of the record is a name or a keyword, `name first last`: the first and the last version whose examples use it, or the
last that has it where the changelog says so (`changelog`). Only the folder `examples/python/CuTeDSL` of each tag is read.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import surface

RECORD = surface.HERE / "surface_versions.txt"
PAGE = surface.HERE.parent / "docs" / "come-from" / "cute-dsl.md"
MARKS = "<!-- versions: python tools/surface_versions.py page -->", "<!-- end of versions -->"
EXAMPLES = "examples/python/CuTeDSL"
FIRST = (4, 2)
OF_THE_PROGRAM = ("cutlass.cute.compile(", "cutlass.cute.testing.JitArguments(")
"""Calls whose keywords are those of the user's function."""
SLIPS = ("cutlass.int", *(f"cutlass.torch.RandomInitConfig({name}=)" for name in ("mean", "scale", "std")))
"""What an example names, and no version has."""

CHANGED = {
    "4.3": ("cutlass.utils.ampere_helpers", "cutlass.utils.hopper_helpers.SMEM_CAPACITY"),
    "4.4": (
        "cutlass.cute.arch.SM100_TMEM_CAPACITY_COLUMNS",
        "cutlass.cute.arch.SM100_TMEM_MIN_ALLOC_COLUMNS",
        "cutlass.cute.nvgpu.cpasync.group_bulk_copy_modes",
        "cutlass.utils.blackwell_helpers.get_num_tmem_alloc_cols",
    ),
    "4.5": ("cutlass.utils.blackwell_helpers.make_trivial_tiled_mma(ab_dtype=)",),
    "4.6": ("cutlass.cute.core.ThrCopy", "cutlass.cute.core.ThrMma", "cutlass.cute.make_fragment"),
}
"""What NVIDIA's changelog calls removed or deprecated in a version: CHANGELOG.md of 4.7.0, and the changelog of the API."""


class Seen(NamedTuple):
    """A name or a keyword, with the first and the last version that is known to have it."""

    name: str
    first: str
    last: str


def read_checkout(checkout: Path) -> str:
    """Return a record of the tags `v4.*.0` of a checkout."""
    tags = _git(checkout, "tag", "--list", "v4.*.0").decode().split()
    versions = sorted(tuple(map(int, tag.removeprefix("v").split(".")))[:2] for tag in tags)
    used = {f"{a}.{b}": set(_names(checkout, f"v{a}.{b}.0")) - {*SLIPS} for a, b in versions if (a, b) >= FIRST}
    for version, names in CHANGED.items():
        before = [one for one in used if _number(one) < _number(version)]
        for one in before[-1:]:
            used[one] |= {*names}
    modules: dict[str, list[str]] = defaultdict(list)
    for name in set().union(*used.values()):
        having = [version for version, names in used.items() if name in names]
        module, _, last = name.partition("(")[0].rpartition(".")
        modules[module].append(f"{last}{name[len(module) + 1 + len(last) :]} {having[0]} {having[-1]}")
    blocks = (f"\n[{module}]\n" + "\n".join(sorted(lines)) + "\n" for module, lines in sorted(modules.items()))
    title = f"# Names and keywords in NVIDIA's examples, by version: {' '.join(used)}"
    return f"{title}\n# See tools/surface_versions.py for what a line says.\n{''.join(blocks)}"


def _git(checkout: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", checkout, *words], stdout=subprocess.PIPE, check=True).stdout


def _names(checkout: Path, tag: str) -> Iterator[str]:
    from kiln.workbench.core import cutlass_uses

    with tarfile.open(fileobj=io.BytesIO(_git(checkout, "archive", tag, EXAMPLES))) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith((".py", ".ipynb")) else None
            if file is None:
                continue
            text = file.read().decode()
            for use in cutlass_uses.read(_cells(text) if member.name.endswith(".ipynb") else text).uses:
                if use.kind != "patch":
                    yield use.name
                yield from (f"{use.name}({key}=)" for key in use.keywords if f"{use.name}(" not in OF_THE_PROGRAM)


def _cells(text: str) -> str:
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join("".join(line for line in cell if not line.lstrip().startswith(("%", "!"))) for cell in cells)


def recorded() -> list[Seen]:
    """Return the record."""
    module = ""
    every: list[Seen] = []
    for line in RECORD.read_text().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            name, first, last = line.split()
            every.append(Seen(f"{module}.{name}" if module else name, first, last))
    return every


def gaps() -> Iterator[surface.Gap]:
    """Yield what Kiln lacks of older versions."""
    from kiln.workbench.core import served_names

    for one in recorded():
        name, _, keyword = one.name.partition("(")
        served = served_names.find(name)
        if isinstance(served, served_names.Lacking):
            if not keyword:
                yield surface.Gap("older", one.name, 0, one.name)
        elif keyword and not served_names.takes(served, keyword.removesuffix("=)")):
            yield surface.Gap("older", one.name, 0, one.name)


# ---- the table


def table() -> str:
    """Return the table of versions, and a sentence on the newest, as far as the recorded files say."""
    seen = recorded()
    versions = sorted({one.first for one in seen} | {one.last for one in seen}, key=_number)
    lacking = {path for kind, path in surface.listed() if kind == "older"}
    rows = ["| version | names and keywords in its examples | of these Kiln has | new | the last that uses |"]
    rows += ["|---|--:|--:|--:|---|"]
    for version in versions:
        having = [one for one in seen if _number(one.first) <= _number(version) <= _number(one.last)]
        served = sum(one.name not in lacking for one in having)
        new = sum(one.first == version for one in having) if version != versions[0] else 0
        gone = [one.name for one in having if one.last == version and version != versions[-1]]
        rows.append(f"| {version} | {len(having)} | {served} | {new or ''} | {_listed(gone)} |")
    names = surface.read(surface.newest())
    counts = Counter(kind for kind, _ in surface.listed())
    used = sum(kind == "name" and path in names and bool(names[path].uses) for kind, path in surface.listed())
    texts = {"path": "second paths of a name", "module": "module paths", "member": "members of classes"}
    texts |= {"parameter": "parameters", "older": "names of older versions"}
    said = ", ".join(f"{counts[kind]} {text}" for kind, text in texts.items() if counts[kind])
    return (
        "\n".join(rows)
        + f"\n\nOf {surface.release(surface.newest())}, {len(names)} names are recorded. Kiln lacks {counts['name']}, of which public libraries use "
        + f"{used}; besides {said}.\n`src/kiln/_support/surface_lacking.txt` lists them.\n"
    )


def _listed(names: Sequence[str]) -> str:
    """Return names without their members and keywords where the name itself is listed."""
    heads = [name for name in names if not any(name.startswith((f"{other}.", f"{other}(")) for other in names)]
    return ", ".join(f"`{name.removeprefix('cutlass.')}`" for name in heads)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def page() -> str:
    """Return the page with the table of now."""
    text = PAGE.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n{table()}{MARKS[1]}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("read", help="print a record of the tags of a checkout").add_argument("checkout", type=Path)
    writing = verbs.add_parser("page", help="write the table into docs/come-from/cute-dsl.md")
    writing.add_argument("--check", action="store_true", help="exit with 1 if it is another")
    args = parser.parse_args(argv)
    if args.verb == "read":
        print(read_checkout(args.checkout), end="")
        return 0
    text = page()
    if args.check:
        return int(text != PAGE.read_text())
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
