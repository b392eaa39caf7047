"""Names of source files in PTX and in what is made of it.

`.file` has no escapes: a quote ends the name, and the tools pass every other character on as it is. So characters
besides the plain ones of ASCII are written as in addresses of the web (`%22`), and read back where lines of PTX or SASS
are shown.
"""

from __future__ import annotations

import re

_NOT_PLAIN = re.compile(r'%(?=[0-9A-F]{2})|["\\]|[^ -~]')
_ENCODED = re.compile(r"(?:%[0-9A-F]{2})+")


def encoded(path: str) -> str:
    """Return a path as `.file` names it."""
    return _NOT_PLAIN.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogateescape")), path
    )


def decoded(text: str) -> str:
    """Return the path that `.file` names."""
    return _ENCODED.sub(lambda match: bytes.fromhex(match[0].replace("%", "")).decode(errors="surrogateescape"), text)
