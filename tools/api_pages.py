"""Make `docs/reference/api-*.md` from docstrings: `python tools/api_pages.py [--check]`.

What is written there is changed where it is defined.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

PAGES = {
    "api-core": ("`cute`: layouts, tensors, values, copies, MMAs", ("kiln.cute", "kiln.cute.math")),
    "api-arch": ("`cute.arch`: threads, synchronization, atomics, memory", ("kiln.cute.arch",)),
    "api-nvgpu": (
        "`cute.nvgpu`: operations of NVIDIA's hardware",
        (
            "kiln.cute.nvgpu",
            "kiln.cute.nvgpu.warp",
            "kiln.cute.nvgpu.warpgroup",
            "kiln.cute.nvgpu.tcgen05",
            "kiln.cute.nvgpu.cpasync",
        ),
    ),
    "api-runtime-utils": (
        "runtime, utilities, pipelines, testing",
        (
            "kiln.cute.runtime",
            "kiln.utils",
            "kiln.utils.schedulers",
            "kiln.utils.tiles",
            "kiln.utils.sm90",
            "kiln.utils.sm100",
            "kiln.utils.blockscaled_layout",
            "kiln.pipeline",
            "kiln.testing",
            "kiln.cute.testing",
        ),
    ),
}
SITE = (*(module for _, modules in PAGES.values() for module in modules), "kiln.kernels", "kiln.torch", "kiln.nn")
"""The modules whose functions and classes the site documents."""
_HIDDEN = {"self", "cls", "loc", "ip"}
_SIMPLE = (bool, int, float, str, type(None))


def page(name: str) -> str:
    """The text of a page."""
    title, modules = PAGES[name]
    parts = [f"# Index of {title}", "Made from docstrings by `python tools/api_pages.py`; change them there."]
    for module in modules:
        shown = module.removeprefix("kiln.")
        found = importlib.import_module(module)
        parts.append(f"## `{shown}`")
        if module != "kiln.cute":
            parts.append(_first(found.__doc__))
        parts.append("\n".join(["| | |", "|---|---|", *_rows(found)]))
    return "\n\n".join(parts) + "\n"


def public(module_name: str) -> list[tuple[str, Any]]:
    """Return the public functions and classes of a module that have a docstring, in alphabetical order."""
    module = importlib.import_module(module_name)
    later = [name for table in ("_PLACES", "_LAZY_NAMES") for name in getattr(module, table, ())]  # loaded when used
    names = getattr(module, "__all__", None) or {name for name in {*dir(module), *later} if not name.startswith("_")}
    found: list[tuple[str, Any]] = []
    for name in sorted({*names}, key=lambda name: (name.lower(), name)):
        try:
            value = getattr(module, name, None)
        except ModuleNotFoundError:  # it needs a package that is not installed
            continue
        if not callable(value) or not (getattr(value, "__module__", "") or "").startswith("kiln"):
            continue
        if value.__doc__ if isinstance(value, type) else inspect.getdoc(value):
            found.append((name, value))
    return found


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the example of each function, by its full name: blocks with their languages.

    They stand in `docs/reference/examples/*.md`, where a heading names the module (`## cute.arch`) and one below it
    the functions that the blocks after it show (`### barrier, sync_threads`).
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "docs" / "reference" / "examples").glob("*.md")):
        module, names = "", list[str]()
        for part in re.finditer(r"^(##+) ([^\n]*)$|^```(\w+)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            level, heading, language, code = part.groups()
            if level == "##":
                module, names = heading, []
            elif level:
                names = heading.split(", ")
            else:
                for name in names:
                    found.setdefault(f"kiln.{module}.{name}", []).append((language, code))
    return found


def found(name: str) -> Any:
    """Return a function by its full name, `kiln.cute.arch.barrier`."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def _rows(module: Any) -> list[str]:
    rows: list[str] = []
    for name, value in public(module.__name__):
        text = _first(value.__doc__ if isinstance(value, type) else inspect.getdoc(value))
        if text:
            rows.append(f"| `{name}{parameters(value)}` | {text} |".replace("\n", " "))
    return rows


def parameters(value: Any, types: bool = False) -> str:
    """Return names and plain defaults; annotations and other defaults print differently from one Python to the next.

    With `types` an annotation that is written as a string, and is not `Any`, is shown too.
    """
    plain = isinstance(value, type) and (
        issubclass(value, (enum.Enum, Exception, int)) or getattr(value, "_is_protocol", False)
    )
    if not callable(value) or plain:
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown: list[str] = []
    keyword_only = False
    for each in parameters:
        if each.name in _HIDDEN or each.name.startswith("_"):
            continue
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        keyword_only = keyword_only or each.kind is each.VAR_POSITIONAL
        default = (
            "" if each.default is each.empty else f"={each.default!r}" if type(each.default) in _SIMPLE else "=..."
        )
        kind = each.annotation if types and isinstance(each.annotation, str) and each.annotation != "Any" else ""
        shown.append(f"{star}{each.name}{': ' if kind else ''}{kind}{default}")
    return f"({', '.join(shown)})"


def _first(text: str | None) -> str:
    """The first sentence of a docstring, safe for a table."""
    paragraph = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?=\s[A-Z`]|$)", paragraph)
    return (sentence.group(0) if sentence else paragraph).rstrip(":").replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say only whether the pages are current")
    check = parser.parse_args().check
    wrong = 0
    for name in PAGES:
        path, text = ROOT / "docs" / "reference" / f"{name}.md", page(name)
        if check and (not path.is_file() or path.read_text() != text):
            print(
                f"{path.relative_to(ROOT)} is not what the docstrings say: python tools/api_pages.py", file=sys.stderr
            )
            wrong += 1
        elif not check:
            path.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
