"""Sphinx extension: the fences of Kiln's pages that no lexer knows.

`output` is what the block above prints, `refused` lines of the error it raises, `now` what Kiln says of a mistake and
`then` what it used to say, `rooms` the rules of imports, `mlir` IR. They are text; `kiln.css` labels them.
"""

from __future__ import annotations

from typing import Any

from pygments.lexers.special import TextLexer

FENCES = ("output", "refused", "now", "then", "rooms", "mlir")


def setup(app: Any) -> dict[str, bool]:
    for fence in FENCES:
        app.add_lexer(fence, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
