"""Files and code that verbs write for users: names are checked, texts are quoted, links are not followed."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping
from pathlib import Path

from ..core.contracts import ContractError


def is_name(text: str) -> bool:
    """Return whether a text can name a module, a package or a function."""
    return text.isidentifier() and not keyword.iskeyword(text)


def class_name(name: str) -> str:
    """Return the name of a module as a class name: my_kernel, MyKernel."""
    camel = "".join(word.capitalize() for word in name.split("_"))
    return camel if is_name(camel) else f"Plan{camel}"


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files of a folder by their names in it, creating the folder. Links are refused, not followed."""
    for name in files:
        for path in (folder / name, *(folder / each for each in Path(name).parents[:-1])):
            if path.is_symlink():
                raise ContractError(f"{path} is a link: nothing is written where it leads")
    for name, data in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        except OSError as reason:
            raise ContractError(f"cannot write {folder / name}: {reason.strerror}") from None


def docstring(text: str) -> str:
    """Return a text as a docstring."""
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    # File names may contain other line ends, and bytes that are no text.
    text = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)
    return '"""' + (text[:-1] + '\\"' if text.endswith('"') else text) + '"""'


def one_line(text: str) -> str:
    """Return a text as part of a comment."""
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))


def literal(value: object, what: str, path: Path) -> str:
    """Return a value of a file as code."""
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError, RecursionError):
        pass
    raise ContractError(f"{what} is {text}, which is not a Python constant", path)
