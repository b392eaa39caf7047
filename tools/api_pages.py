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
            "kiln.cute.nvgpu", "kiln.cute.nvgpu.warp", "kiln.cute.nvgpu.warpgroup", "kiln.cute.nvgpu.tcgen05",
            "kiln.cute.nvgpu.cpasync",
        ),
    ),
    "api-runtime-utils": (
        "Runtime, utilities, pipelines, testing",
        (
            "kiln.cute.runtime", "kiln.utils", "kiln.utils.schedulers", "kiln.utils.sm90", "kiln.utils.sm100",
            "kiln.utils.blockscaled_layout", "kiln.pipeline", "kiln.testing", "kiln.cute.testing",
        ),
    ),
}  # fmt: skip
_HIDDEN = {"self", "cls", "loc", "ip"}
_SIMPLE = (bool, int, float, str, type(None))


def page(name: str) -> str:
    """The text of a page."""
    title, modules = PAGES[name]
    parts = [f"# {title}", "Made from docstrings by `python tools/api_pages.py`; change them there."]
    for module in modules:
        shown = module.removeprefix("kiln.")
        found = importlib.import_module(module)
        parts.append(f"## `{shown}`")
        if module != "kiln.cute":
            parts.append(_first(found.__doc__))
        parts.append("\n".join(["| | |", "|---|---|", *_rows(found)]))
    return "\n\n".join(parts) + "\n"


def _rows(module: Any) -> list[str]:
    later = [name for table in ("_PLACES", "_LAZY_NAMES") for name in getattr(module, table, ())]  # loaded when used
    names = getattr(module, "__all__", None) or [name for name in {*dir(module), *later} if not name.startswith("_")]
    rows: list[str] = []
    for name in sorted(names, key=lambda name: (name.lower(), name)):
        value = getattr(module, name, None)
        if not callable(value) or not (getattr(value, "__module__", "") or "").startswith("kiln"):
            continue
        text = _first(value.__doc__ if isinstance(value, type) else inspect.getdoc(value))
        if text:
            call = f"{name}{_parameters(value)}"
            rows.append(f"| `{call}` | {text} |".replace("\n", " "))
    return rows


def _parameters(value: Any) -> str:
    """Names and plain defaults; annotations and other defaults print differently from one Python to the next."""
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
        shown.append(f"{star}{each.name}{default}")
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
