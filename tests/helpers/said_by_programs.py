"""What a program with a mistake says."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType

import kiln
from kiln.base_dsl import uncaught


def said_by(name: str, program: str, folder: Path) -> str:
    """Run a program as a file on the CPU target.

    Returns the text of the traceback that a terminal shows and of the warnings, with the file's name alone.
    """
    file = folder / f"{name}.py"
    file.write_text(program)
    module = ModuleType(name)
    before = sys.modules.get(name)
    sys.modules[name] = module
    shown: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught, kiln.target("cpu"):
            warnings.simplefilter("always")
            try:
                exec(compile(program, str(file), "exec"), module.__dict__)
            except Exception as failure:
                uncaught.clean(failure)
                shown = traceback.format_exception(failure)
                if sys.version_info < (3, 11):
                    shown += [f"{text}\n" for text in getattr(failure, "__notes__", ())]
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
    shown += [warnings.formatwarning(w.message, w.category, w.filename, w.lineno) for w in caught]
    return "".join(shown).replace(f"{folder}/", "")
