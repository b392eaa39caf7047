"""Sphinx extension: links from pages to files of the project.

A link to a file outside `docs`, or to a program inside, leads to a page of the site with the file's text; a link to a
folder, to a list of its files. README, CONTRIBUTING and the changelog are pages of the site themselves.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PAGES = {"README.md": "index", "CONTRIBUTING.md": "project/contributing", "CHANGELOG.md": "project/changelog"}
"""Files outside `docs` that have a page of their own."""
FILES = "kiln-files"


def _target(node: nodes.Element, docname: str) -> tuple[Path, str] | None:
    """Return the file or folder that a link of a page means, and its anchor, if it is no page of the site by itself."""
    target, _, anchor = unquote(node.get("reftarget", "")).partition("#")
    if not target or "://" in target or node.get("reftype") != "myst":
        return None
    if node.get("refdomain") == "doc":
        if not target.startswith("/") and not target.startswith(".."):
            return None
        anchor = node.get("reftargetid") or ""
    for base in (DOCS / Path(docname).parent, ROOT):
        for suffix in (".md", ".ipynb") if node.get("refdomain") == "doc" else ("",):
            path = Path(os.path.normpath(f"{base / target}{suffix}"))
            if path.exists() and path.is_relative_to(ROOT):
                return path, anchor
    return None


def _replace(app: Any, doctree: nodes.document) -> None:
    docname = app.env.docname
    shown: set[str] = set()
    for node in [*doctree.findall(addnodes.pending_xref), *doctree.findall(addnodes.download_reference)]:
        if (found := _target(node, docname)) is None:
            continue
        path, anchor = found
        name = path.relative_to(ROOT).as_posix()
        page = PAGES.get(name)
        if page is None and path.suffix == ".ipynb":
            page = f"notebooks/{path.stem}"
        if page is None and path.is_relative_to(DOCS) and path.suffix == ".md":
            page = path.relative_to(DOCS).with_suffix("").as_posix()
        if page is None:
            shown.add(name)
            page = f"files/{name}"
        up = "../" * docname.count("/")
        link = nodes.reference("", "", internal=True, refuri=f"{up}{page}.html{'#' if anchor else ''}{anchor}")
        link.extend(node.children)
        node.replace_self(link)
    if shown:
        app.env.metadata[docname][FILES] = "\n".join(sorted(shown))


def _body(path: Path) -> str:
    if path.is_dir():
        rows = [
            f'<li><a href="{html.escape(path.name)}/{html.escape(each.name)}.html">{html.escape(each.name)}</a></li>'
            for each in _listed(path)
        ]
        return f"<ul>{''.join(rows)}</ul>"
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(linenos="inline", anchorlinenos=True, lineanchors="L", cssclass="highlight")
    return highlight(path.read_text(), lexer, formatter)


def _listed(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))


def _pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    names = {name for data in app.env.metadata.values() for name in data.get(FILES, "").split("\n") if name}
    paths = {ROOT / name for name in names}
    paths |= {each for path in paths if path.is_dir() for each in _listed(path)}
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        title = html.escape(name)
        yield f"files/{name}", {"title": title, "body": f"<h1>{title}</h1>{_body(path)}", "parents": []}, "page.html"


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", _replace, priority=400)  # before files of links are taken for downloads
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
