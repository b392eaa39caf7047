"""Sphinx extension: the search finds a page by the synonyms that stand in its head as `also`, separated by commas."""

from __future__ import annotations

import functools
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform


class Synonyms(SphinxTransform):
    """Make each synonym a main entry of the index, which the search places before mentions in texts."""

    default_priority = 840  # before the index takes its entries

    def apply(self, **kwargs: Any) -> None:
        for field in list(self.document.findall(nodes.field)):
            if field[0].astext() == "also":
                words = field[1].astext().split(", ")
                self.document += addnodes.index(entries=[("single", word, "", "main", None) for word in words])


def setup(app: Any) -> dict[str, bool]:
    app.add_transform(Synonyms)
    SearchEnglish.stem = functools.cache(SearchEnglish.stem)  # most words of a page stand on others, too
    return {"parallel_read_safe": True, "parallel_write_safe": True}
