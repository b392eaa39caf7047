"""Kiln's logger, set up from `CUTE_DSL_LOG_TO_CONSOLE`, `CUTE_DSL_LOG_TO_FILE` and `CUTE_DSL_LOG_LEVEL`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from . import settings
from .diagnostics import DSLRuntimeError

if TYPE_CHECKING:
    import logging

_configured: tuple[object, ...] | None = None
_own_handlers: list[logging.Handler] = []


def logger() -> logging.Logger:
    """Return the logger `kiln`, set up as the environment says now; by default an ordinary quiet logger."""
    import logging

    global _configured
    kiln_logger = logging.getLogger("kiln")
    setting = tuple(os.environ.get(f"CUTE_DSL_LOG_{what}") for what in ("TO_CONSOLE", "TO_FILE", "LEVEL"))
    if setting != _configured:
        _configured = setting
        _configure(kiln_logger)
    return kiln_logger


def _configure(log: logging.Logger) -> None:
    import logging

    for handler in _own_handlers:
        log.removeHandler(handler)
        handler.close()
    _own_handlers.clear()
    console = settings.get("CUTE_DSL_LOG_TO_CONSOLE")
    file = settings.get("CUTE_DSL_LOG_TO_FILE")
    level = settings.get("CUTE_DSL_LOG_LEVEL")
    handlers: list[logging.Handler] = []
    if console:
        handlers.append(logging.StreamHandler(sys.stderr))
    if file:
        directory = settings.get("CUTE_DSL_DUMP_DIR")
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as reason:
            raise DSLRuntimeError(f"CUTE_DSL_DUMP_DIR={directory} cannot be made: {reason.strerror}") from None
        handlers.append(logging.FileHandler(os.path.join(directory, f"kiln-{os.getpid()}.log"), delay=True))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
        log.addHandler(handler)
        _own_handlers.append(handler)
    log.propagate = not handlers
    if not handlers or level == 0:
        log.setLevel(logging.CRITICAL + 1 if level == 0 else logging.WARNING)
    else:
        log.setLevel(level)
