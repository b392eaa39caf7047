"""What the site's playground loads: Pyodide from its npm package, and a zip of the modules of Kiln that draw layouts.

The package is downloaded once, into `build/`, and its hash is checked. Without a registry there is no playground.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib
import io
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "docs" / "_playground"
sys.path.insert(0, str(SOURCES))

answer: Any = importlib.import_module("answer")

VERSION = "314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""The hash of the package, as `npm view pyodide@VERSION dist.integrity` prints it."""
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""The files of the package that a page loads."""

_MODULES = """
import sys
sys.path[:0] = sys.argv[1:3]
import answer
for title, *typed in answer.PRESETS:
    assert "svg" in answer.answer(*typed), title
for operation in answer.OPERATIONS:
    answer.answer(operation, "8:1", "S<1,0,3>" if operation == "swizzle" else "2:1")
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] in ("kiln", "answer")), sep="\\n")
"""


def package() -> bytes | None:
    """Return the npm package, downloaded if it is not there; None where there is no registry."""
    kept = ROOT / "build" / Path(ADDRESS).name
    if kept.exists() and _hash(data := kept.read_bytes()) == SHA512:
        return data
    try:
        with urllib.request.urlopen(ADDRESS, timeout=20) as reply:
            data = reply.read()
    except OSError:
        return None
    if _hash(data) != SHA512:
        raise ValueError(f"{ADDRESS} has the hash sha512-{_hash(data)}, but sha512-{SHA512} is expected")
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(data)
    return data


def _hash(data: bytes) -> str:
    return base64.b64encode(hashlib.sha512(data).digest()).decode()


def modules() -> list[Path]:
    """Return the files that Python loads for all operations, with its standard library alone."""
    source = ROOT / "src"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _MODULES, str(source), str(SOURCES)],
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(map(Path, done.stdout.split()))


def write_zip(path: Path) -> None:
    """Write the modules into a zip; the same files give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in modules():
            name = file.relative_to(SOURCES if file.is_relative_to(SOURCES) else ROOT / "src").as_posix()
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)


def install(folder: Path, data: bytes) -> None:
    """Write everything that the page loads into a folder: the script, the zip, and Pyodide."""
    pyodide = folder / "pyodide"
    pyodide.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCES / "playground.js", folder)
    write_zip(folder / "kiln.zip")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (pyodide / name).write_bytes(member.read())


def form() -> str:
    """Return the page's form, with the operations and presets of `answer.py`."""
    options = "".join(
        f'<option data-operand="{html.escape(operand)}">{name}</option>' for name, operand in answer.OPERATIONS.items()
    )
    presets = "".join(
        f'<button type="button" data-operation="{operation}" '
        f'data-layout="{layout}" data-operand="{html.escape(operand)}">{title}</button>'
        for title, operation, layout, operand in answer.PRESETS
    )
    text = (SOURCES / "form.html").read_text(encoding="utf-8")
    return text.replace("OPTIONS", options).replace("PRESETS", presets).replace("VERSION", VERSION)
