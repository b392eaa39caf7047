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


def _keep_synonyms(app: Any) -> list[Any]:
    """Index the synonyms of pages that are not built again: Sphinx loads their titles and words, and not these."""
    if (indexer := getattr(app.builder, "indexer", None)) is not None:
        for page in indexer._titles.keys() - indexer._index_entries.keys():
            entries = [x for node in app.env.get_doctree(page).findall(addnodes.index) for x in node["entries"]]
            indexer._index_entries[page] = [(word, "", main) for _, word, _, main, _ in entries if main == "main"]
    return []


def setup(app: Any) -> dict[str, bool]:
    app.add_transform(Synonyms)
    app.connect("html-collect-pages", _keep_synonyms)  # the last event before the index is written
    SearchEnglish.stem = functools.cache(SearchEnglish.stem)  # most words of a page stand on others, too
    return {"parallel_read_safe": True, "parallel_write_safe": True}
