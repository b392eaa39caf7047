"""Errors as terminals, pytest and IPython show them: without Kiln's own frames, and in colour on a terminal.

`python -X dev`, `CUTE_DSL_DEBUG=1` and `CUTE_DSL_FILTER_STACKTRACE=0` show every frame.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

from .._support import lazy
from . import settings
from .diagnostics import DSLBaseError, DSLWarning, coloured, strip_internal_frames

_NO_GPU = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")
_SERVED = (
    'without a GPU, `kiln run --target cpu PROGRAM` serves device="cuda" from the memory of the host; '
    "Kiln itself takes tensors of the CPU as they are"
)


def shows_all_frames() -> bool:
    """Return whether tracebacks keep the frames of Kiln's own code."""
    return sys.flags.dev_mode or not settings.get("CUTE_DSL_FILTER_STACKTRACE")


def is_users(failure: BaseException) -> bool:
    """Return whether an error reports a mistake of the user's program, as opposed to a failure of Kiln's own."""
    if isinstance(failure, AttributeError) and not isinstance(
        failure, DSLBaseError
    ):  # a name that one of Kiln's modules does not have
        last = failure.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        return last is not None and last.tb_frame.f_code.co_filename == lazy.__file__
    return isinstance(failure, (DSLBaseError, DSLWarning))


def clean(failure: BaseException | None) -> None:
    """Drop Kiln's frames from the traceback of an error of the user's, and of those it came from; name the way to run
    programs for CUDA where torch has found no GPU."""
    seen = set[int]()
    while failure is not None and id(failure) not in seen:
        seen.add(id(failure))
        if is_users(failure) and not shows_all_frames():
            failure.__traceback__ = strip_internal_frames(failure.__traceback__)
        elif isinstance(failure, (AssertionError, RuntimeError)) and any(text in str(failure) for text in _NO_GPU):
            note(failure, _SERVED)
        failure = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)


def note(failure: BaseException, text: str) -> None:
    """Add a note to an exception, as `add_note` does (Python 3.10 has none and does not show it), once."""
    notes: list[str] = getattr(failure, "__notes__", [])
    if text not in notes:
        failure.__notes__ = [*notes, text]  # type: ignore[attr-defined]


def wants_colour(stream: Any) -> bool:
    """Return whether text on a stream is coloured: on terminals, unless NO_COLOR is set; FORCE_COLOR: everywhere."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def install() -> None:
    """Put Kiln's part before `sys.excepthook` and `threading.excepthook`."""
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], failure: BaseException, tb: types.TracebackType | None) -> None:
        clean(failure)
        with coloured(wants_colour(sys.stderr)):
            before(kind, failure, failure.__traceback__ if is_users(failure) else tb)
        if sys.version_info < (3, 11):
            for text in getattr(failure, "__notes__", ()):
                print(text, file=sys.stderr)

    sys.excepthook = hook
    in_thread = threading.excepthook

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None:
            in_thread(args)
            return
        clean(args.exc_value)
        tb = args.exc_value.__traceback__ if is_users(args.exc_value) else args.exc_traceback
        with coloured(wants_colour(sys.stderr)):
            in_thread(threading.ExceptHookArgs((args.exc_type, args.exc_value, tb, args.thread)))

    threading.excepthook = thread_hook


def render_for_ipython(failure: BaseException) -> list[str]:
    """Return the lines that IPython shows for an error (its protocol `_render_traceback_`)."""
    clean(failure)
    shell = sys.modules["IPython"].get_ipython()
    with coloured(not os.environ.get("NO_COLOR") and str(getattr(shell, "colors", "")).lower() != "nocolor"):
        shown: Any = shell.InteractiveTB.structured_traceback(type(failure), failure, failure.__traceback__)
    lines: list[str] = [shown] if isinstance(shown, str) else shown
    text = "\n".join(lines)
    return [*lines, *(note for note in getattr(failure, "__notes__", ()) if note not in text)]  # older ones show none
