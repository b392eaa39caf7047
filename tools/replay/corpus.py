"""What `replay` compiles, with public names only: the library's kernels, the examples, programs with every kind of synchronization,
and small kernels for the operations of the hardware.

    python tools/replay/corpus.py --list
    python tools/replay/corpus.py --target sm_90a --out FOLDER NAME...     # compiles some cases with the Kiln on PYTHONPATH
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = ("sm_80", "sm_90a", "cpu")


# --- cases -----------------------------------------------------------------------------------------------------------


def cases(target: str) -> dict[str, Callable[[], Any]]:
    """Every case by its name. For a GPU nothing is launched, so that sizes may be those users have; the CPU target runs small ones."""
    import library_calls as library
    import operation_kernels as operations

    found: dict[str, Callable[[], Any]] = {}
    found |= {f"library/{name}": call for name, call in (library.SMALL if target == "cpu" else library.SHIPPED).items()}
    found |= {f"operations/{name}": call for name, call in operations.CASES.items()}
    for file in sorted((ROOT / "tests" / "targets" / "cpu" / "sanitizer" / "mutants").glob("*.py")):
        if not file.name.startswith("library_"):
            found[f"programs/{file.stem}"] = lambda file=file: _module(file).run()
    for file in sorted((ROOT / "examples").glob("*.py")):
        found[f"examples/{file.stem}"] = lambda file=file: _program(file)
    return found


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _program(file: Path) -> None:
    """Run a program as `python` does; it may find that nothing was computed."""
    import runpy

    sys.argv = [str(file)]
    with contextlib.suppress(SystemExit):
        runpy.run_path(str(file), run_name="__main__")


# --- results ---------------------------------------------------------------------------------------------------------

_LOCATION = re.compile(r" ?loc\((?:[^()]|\([^()]*\))*\)|^#loc.*$", re.MULTILINE)
_SASS = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ |@!?U?PT )?([A-Z][A-Z0-9_]*)((?:\.[A-Z0-9_]+)*)")


def _ptx(text: str) -> str:
    """Without line information, which names files of the checkout."""
    text = text.split(".section\t.debug", maxsplit=1)[0]
    return "\n".join(
        line.split("//")[0].rstrip()
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith((".loc", ".file", "//", "$L__tmp", "$L__func", "$L__info"))
    )


def result(folder: Path, launches: list[Any]) -> dict[str, Any]:
    """What is compared of the artefacts in a folder."""
    made: dict[str, Any] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix == ".mlir":
            made[file.name] = _LOCATION.sub("", file.read_text())
        elif file.suffix == ".ptx":
            made[file.name] = _ptx(file.read_text())
        elif file.suffix == ".sass":
            made[file.name] = dict(Counter(opcode for opcode, _ in _SASS.findall(file.read_text())))
        elif file.suffix == ".o":
            made[file.name] = {"bytes of code": _code_size(file)}
        file.unlink()
    for number, launch in enumerate(launches):
        used = launch.resources
        made[f"launch {number}"] = {
            "kernel": launch.kernel, "grid": str(launch.grid), "block": str(launch.block), "smem": launch.smem,
            "registers": used.registers, "spills": used.spill_stores + used.spill_loads, "stack": used.stack,
            "static smem": used.static_smem,
        }  # fmt: skip
    return made


def _code_size(file: Path) -> int:
    from llvmlite import binding

    return sum(section.size() for section in binding.ObjectFileRef.from_path(str(file)).sections() if section.is_text())


def compile_cases(target: str, out: Path, names: list[str]) -> None:
    import kiln
    from kiln.testing import dry_run

    os.environ["CUTE_DSL_KEEP"] = "ir,object" if target == "cpu" else "ir,ptx,sass"
    os.environ["KILN_CPU_THREADS"] = "1"
    known = cases(target)
    for name in names:
        folder = out / target / name
        folder.mkdir(parents=True)
        os.environ["CUTE_DSL_DUMP_DIR"] = str(folder)
        launches: list[Any] = []
        said = io.StringIO()
        running = kiln.target("cpu") if target == "cpu" else dry_run(target)
        try:
            with contextlib.redirect_stdout(said), running as noted:
                launches = noted if isinstance(noted, list) else []
                known[name]()
            made = result(folder, launches)
        except Exception as failure:
            made = {"error": "".join(traceback.format_exception_only(failure)).replace(str(ROOT), "")}
        (folder / "result.json").write_text(json.dumps(made))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", action="store_true")
    options.add_argument("--target", default="cpu")
    options.add_argument("--out", type=Path)
    options.add_argument("names", nargs="*")
    asked = options.parse_args()
    if asked.list:
        print("\n".join(f"{target}\t{name}" for target in TARGETS for name in cases(target)))
        return
    compile_cases(asked.target, asked.out, asked.names)


if __name__ == "__main__":
    main()
