"""Displays of notebooks: tables, source lines and progress bars as HTML that fits light and dark themes.

Colours come from the notebook, so that text is as readable as its own. Everything shown as HTML is also given as plain
text, for notebooks without HTML and for terminals.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LINE = "rgba(127,127,127,.35)"
_SHADE = "rgba(127,127,127,.13)"
_CELL = f"padding:3px 10px;border:0;border-bottom:1px solid {_LINE};vertical-align:top;text-align:"


def escape(text: str) -> str:
    """Return a text as HTML."""
    import html  # start-up: it has a table of all entities

    return html.escape(text)


class Shown:
    """An object that notebooks show as HTML (`_as_html`) and as text (`str`) of the same content."""

    __slots__ = ()

    def _as_html(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what IPython shows of it."""
        return {"text/plain": str(self), "text/html": self._as_html()}


def page(*parts: str) -> str:
    """Return the parts of a display as one."""
    return f'<div style="font:13px/1.5 system-ui,sans-serif">{"".join(parts)}</div>'


def heading(text: str, badge: str = "") -> str:
    """Return a line that says what follows, behind a badge for something wrong."""
    style = "background:#b3261e;color:#fff;border-radius:4px;padding:1px 7px;margin-right:7px;font-size:12px"
    mark = f'<span style="{style}">{escape(badge)}</span>' if badge else ""
    return f'<div style="margin:7px 0 3px">{mark}<b>{escape(text)}</b></div>'


def note(text: str) -> str:
    """Return a line of explanation."""
    return f'<div style="margin:3px 0">{escape(text)}</div>'


def source(text: str) -> str:
    """Return lines of a program."""
    style = f"margin:3px 0;padding:5px 10px;background:{_SHADE};border-radius:5px;overflow-x:auto;"
    style += "font:12px/1.45 ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"
    return f'<pre style="{style}">{escape(text)}</pre>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0, name: str = "") -> str:
    """Return a table whose first `numbers` columns are numbers; a cell of several lines has code after the first."""
    sides = ["right" if column < numbers else "left" for column in range(len(head))]
    heads = "".join(f'<th scope="col" style="{_CELL}{side}">{escape(text)}</th>' for side, text in zip(sides, head))
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}{side}">{_cell(text)}</td>' for side, text in zip(sides, row)) + "</tr>"
        for row in rows
    )
    caption = f'<caption style="caption-side:top;text-align:left"><b>{escape(name)}</b></caption>' if name else ""
    style = "border-collapse:collapse;margin:4px 0;font-variant-numeric:tabular-nums"
    return (
        f'<div style="overflow-x:auto"><table style="{style}">{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    first, _, rest = text.partition("\n")
    return escape(first) + (f"<br><code>{escape(rest)}</code>" if rest else "")


# --- progress --------------------------------------------------------------------------------------------------------


def is_here() -> bool:
    """Return whether this process is the kernel of a notebook; IPython in a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class _Bar(Shown):
    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.text = ""
        self.begun = time.monotonic()

    def __str__(self) -> str:
        count = f"{self.done} of {self.total}" if self.total else str(self.done or "")
        seconds = f"{time.monotonic() - self.begun:.0f} s"
        return " ".join(filter(None, [f"{self.what}:", count, self.text, f"({seconds})"]))

    def _as_html(self) -> str:
        attributes = f' value="{self.done}" max="{self.total}"' if self.total else ""
        label = escape(self.what)
        return page(f'<progress aria-label="{label}" style="width:220px"{attributes}></progress> {escape(str(self))}')


@contextlib.contextmanager
def bar(total: int | None, what: str, every: float = 0.2) -> Iterator[Callable[..., None]]:
    """Show a progress bar in the cell; yield a function to call after each step, with the name of the next."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    shown = _Bar(what, total)
    handle: Any = display(shown, display_id=True)
    due = time.monotonic() + every

    def advance(text: str = "", steps: int = 1) -> None:
        nonlocal due
        shown.done += steps
        shown.text = text
        if time.monotonic() >= due:
            due = time.monotonic() + every
            handle.update(shown)

    try:
        yield advance
    finally:
        shown.text = ""
        shown.total = shown.total and max(shown.total, shown.done)
        handle.update(shown)
