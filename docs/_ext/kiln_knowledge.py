"""Sphinx extension: pages of the knowledge base show when they apply, and the other words for their subject.

Both stand in the head of a page, which the site's search does not read.
"""

from __future__ import annotations

import re
from typing import Any


def _show_head(app: Any, docname: str, source: list[str]) -> None:
    """Put the fields `when` and `also` below the heading of a page."""
    if not docname.startswith("knowledge/") or (found := re.match(r"---\n(.*?)\n---\n", source[0], re.DOTALL)) is None:
        return
    fields = re.findall(r"^(when|also): '?(.*?)'?$", found.group(1), re.MULTILINE)
    shown = "\n\n".join(f"**{name.capitalize()}:** {text}" for name, text in fields)
    source[0] = re.sub(r"(?m)^# .*$", lambda title: f"{title.group()}\n\n{shown}", source[0], count=1)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _show_head)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
