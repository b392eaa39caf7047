"""Writes a model of `kiln inspect` as one HTML file that needs no server and no network."""

from __future__ import annotations

import base64
import html
import json
import zlib
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).parents[1] / "page"


def page(model: dict[str, Any]) -> str:
    """Return the page of a model (`model.build`)."""
    from . import highlight  # loads pygments: 100 ms

    colours = highlight.Colours()
    for file in model["files"]:
        file["runs"] = colours.runs("python", file["lines"])
    for unit in model["units"]:
        for text in unit["texts"]:
            text["runs"] = colours.runs(text["kind"], text["lines"])
    packed = zlib.compress(json.dumps(model, separators=(",", ":")).encode(), 9)
    title = html.escape(f"{model['title']} · kiln inspect")
    style = part("base.css") + part("inspect.css")
    data = base64.b64encode(packed).decode()
    return fill("inspect.html", title=title, style=style, script=part("inspect.js"), model=data)


def part(name: str) -> str:
    """Return the text of a file in the folder `page`."""
    return (_PAGE / name).read_text(encoding="utf-8")


def fill(name: str, **values: str) -> str:
    """Return a page with values in place of `{{names}}`."""
    text = part(name)
    for value in values:
        assert text.count(f"{{{{{value}}}}}") == 1, value
    for value, replacement in values.items():
        text = text.replace(f"{{{{{value}}}}}", replacement)
    return text


def model_of(text: str) -> dict[str, Any]:
    """Return the model in a page."""
    packed = text.split('<script id="model" type="text/plain">')[1].split("</script>", maxsplit=1)[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))
