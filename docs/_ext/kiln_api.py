"""Sphinx extension: the reference, by autodoc from signatures and docstrings.

The directive `kiln-api MODULE` documents every public name of a module, classes with their methods. Below a function
stand its example from `docs/reference/examples`, which the tests run, and the errors it raises, which `kiln_raises`
reads from its source. Names in the tables of `reference/api-*.md` link to their entries.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "tools"))

import api_pages  # noqa: E402
import kiln_raises  # noqa: E402

NEED_TORCH = ("kiln.torch", "kiln.nn") if importlib.util.find_spec("torch") is None else ()
"""Modules that cannot be imported here, and are left out of the reference."""


class KilnApi(SphinxDirective):
    """Entries of all public names of a module, by autodoc."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        if module in NEED_TORCH:
            return self.parse_text_to_nodes("This site was built without PyTorch: see the docstrings of the module.")
        lines: list[str] = []
        for name, value in api_pages.public(module):
            kind, options = "function", ()
            if (first := _first_places()[id(value)]) != (module, name):
                lines += [f".. py:data:: {module}.{name}", "", f"   The same as :py:obj:`{'.'.join(first)}`.", ""]
                continue
            if isinstance(value, type):
                kind = "exception" if issubclass(value, BaseException) else "class"
                options = ("   :members:",) if _has_methods(value) else ()
            elif not inspect.isroutine(value):
                kind = "data"
                options = ("   :no-value:", "   :annotation:")
            lines += [f".. auto{kind}:: {module}.{name}", *options, ""]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


@functools.cache
def _first_places() -> dict[int, tuple[str, str]]:
    """Return the module and name under which an object is documented: its own module's, or the first that has it."""
    places: dict[int, tuple[str, str]] = {}
    for module in ("kiln.cute.math", *(each for each in api_pages.SITE if each not in NEED_TORCH)):
        for name, value in api_pages.public(module):
            places.setdefault(id(value), (module, name))
    return places


def _has_methods(value: type) -> bool:
    return (getattr(value, "__module__", "") or "").startswith("kiln") and not issubclass(value, (int, BaseException))


def _signature(app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str) -> Any:
    """Return names, types and plain defaults: what autodoc prints has `Any` everywhere and parameters of the compiler."""
    shown = api_pages.parameters(value, types=True)
    if what in ("method", "function") and shown:
        return shown.replace("(self, ", "(").replace("(self)", "()"), None
    return (shown, None) if what == "class" else (signature, None)


def _markdown_to_rst(lines: list[str]) -> list[str]:
    """Turn a docstring, which is written as Markdown is, into reStructuredText."""
    parts = re.split(r"(:\w+:`[^`]*`|``[^`]+``|`[^`]+`)", "\n".join(lines))
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"([*|])", r"\\\1", re.sub(r"(\w)_(?=\W|$)", r"\1\\_", part))
        elif not part.startswith((":", "``")):
            parts[i] = f"`{part}`"
    return "".join(parts).split("\n")


def _docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    prose, parameters = _without_parameters(lines)
    text = _paragraphs(_markdown_to_rst(prose)) + _markdown_to_rst(parameters)
    if (example := EXAMPLES.get(name) or EXAMPLES.get(SAME.get(id(value), ""))) is not None:
        text += ["", "Example:", ""]
        for language, code in example:
            text += [f".. code-block:: {language}", "", *(f"   {line}" for line in code.splitlines()), ""]
    if what in ("function", "method"):
        text += ["", *kiln_raises.fields(value)]  # last: there can be many
    lines[:] = text


def _without_parameters(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return a docstring without its section `Args:`, and that as a list of fields."""
    if "Args:" not in lines:
        return lines, []
    start = lines.index("Args:")
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    fields = [""]
    for line in lines[start + 1 : end]:
        named = re.match(r"    (\w+): (.*)", line)
        if named:
            fields.append(f":param {named[1]}: {named[2][0].upper()}{named[2][1:]}")
        else:
            fields.append(f"    {line.strip()}")
    return [*lines[:start], *lines[end:]], [*fields, ""]


def _paragraphs(lines: list[str]) -> list[str]:
    """Indented lines inside a paragraph are continued text, or a list's; keep them from being taken for quotations."""
    out: list[str] = []
    for line in lines:
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if out and out[-1].strip() and line.strip() and not item and ".." not in line[:6]:
            before = len(out[-1]) - len(out[-1].lstrip())
            if not re.match(r"\s*([-*]|\d+\.) ", out[-1]) and not out[-1].lstrip().startswith(".."):
                line = " " * before + line.lstrip()
        elif item and out and out[-1].strip() and not re.match(r"\s*([-*]|\d+\.) ", out[-1]):
            out.append("")
        out.append(line)
    return out


def _link_tables(app: Any, doctree: nodes.document) -> None:
    """Make the names in the tables of the overview pages links to their entries."""
    docname = app.env.docname
    if not re.match(r"reference/api-", docname):
        return
    for section in doctree.findall(nodes.section):
        module = f"kiln.{section[0].astext()}"
        if module not in api_pages.SITE:
            continue
        for row in section.findall(nodes.row):
            for code in row[0].findall(nodes.literal):
                name = re.match(r"\w+", code.astext())
                if name is None or isinstance(code.parent, addnodes.pending_xref):
                    continue
                link = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=f"{module}.{name[0]}", refdoc=docname, refexplicit=True
                )
                code.replace_self(link)
                link.append(code)


EXAMPLES = api_pages.examples()
SAME = {id(api_pages.found(name)): name for name in EXAMPLES if not name.startswith(("kiln.torch", "kiln.nn"))}
"""The name under which the example of a function stands, which may have several."""


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("kiln-api", KilnApi)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("doctree-read", _link_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
