"""What `replay` compiles, with public names only: the library's kernels, the examples, programs with every kind of
synchronization, and small kernels for the operations of the hardware.

    python tools/replay/corpus.py --list
    python tools/replay/corpus.py --target sm_90a --out FOLDER NAME...     # compiles some cases with the Kiln on PYTHONPATH

The cases of this folder are the working tree's. Examples and programs are those of the checkout whose Kiln compiles them.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import normalise

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = ("sm_80", "sm_90a", "sm_100a", "cpu")
RESULT = "result.json.gz"


# --- cases -----------------------------------------------------------------------------------------------------------


def checkout() -> Path:
    """Return the root of the checkout whose Kiln is imported."""
    import kiln

    assert kiln.__file__ is not None
    return Path(kiln.__file__).resolve().parent.parent.parent


def cases(target: str) -> dict[str, Callable[[], Any]]:
    """Return every case by its name.

    For a GPU nothing is launched, so that sizes may be those users have; the CPU target runs small ones.
    """
    import library_calls as library
    import operation_kernels as operations
    from library_variants import variants

    root = checkout()
    found: dict[str, Callable[[], Any]] = {}
    found |= {f"library/{name}": call for name, call in (library.SMALL if target == "cpu" else library.SHIPPED).items()}
    if target != "cpu":
        found |= variants(target)
    found |= {f"operations/{name}": call for name, call in operations.CASES.items()}
    for file in sorted((root / "tests").glob("**/mutants/*.py")):
        elsewhere = target == "sm_100a" or (target == "sm_80" and file.name.startswith("hopper_"))
        if not elsewhere and not file.name.startswith("library_"):
            found[f"programs/{file.stem}"] = lambda file=file: _module(file).run()
    for file in sorted((root / "examples").glob("*.py")):
        found[f"examples/{file.stem}"] = lambda file=file: _program(file)
    if target == "sm_90a":
        for file in sorted((root / "examples" / "hopper").glob("step_*.py")):
            name = "_".join(file.stem.split("_")[:2])
            found[f"examples/hopper {name}"] = lambda file=file: _program(file, "256", "256", "192")
    return found


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _program(file: Path, *words: str) -> None:
    """Run a program as `python` does; it may find that nothing was computed."""
    import runpy

    sys.argv = [str(file), *words]
    sys.path.insert(0, str(file.parent))
    try:
        with contextlib.suppress(SystemExit, AssertionError):
            runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.path.remove(str(file.parent))


# --- results ---------------------------------------------------------------------------------------------------------

_SASS = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ |@!?U?PT )?([A-Z][A-Z0-9_]*)((?:\.[A-Z0-9_]+)*)")


def opcodes(sass: str) -> dict[str, int]:
    """Return how many instructions of each kind a disassembly has."""
    return dict(Counter(opcode for opcode, _ in _SASS.findall(sass)))


def of_gpu(launches: list[Any], sass: bool) -> dict[str, Any]:
    """Return what is compared of the launches of a case: IR and PTX of their modules, and how they are launched."""
    made: dict[str, Any] = {}
    modules: dict[int, int] = {}
    for number, launch in enumerate(launches):
        artifacts = launch.artifacts
        if id(artifacts) not in modules:
            at = modules[id(artifacts)] = len(modules)
            made[f"IR {at}"] = normalise.ir(artifacts["mlir"])
            made[f"PTX {at}"] = normalise.ptx(artifacts["ptx"])
            if sass:
                made[f"SASS {at}"] = opcodes(artifacts["sass"])
        noted = {"module": modules[id(artifacts)], "grid": str(launch.grid), "block": str(launch.block)}
        made[f"launch {number}"] = {**noted, "cluster": str(launch.cluster), "smem": launch.smem}
        if sass:
            used = launch.resources
            spills = used.spill_stores + used.spill_loads
            resources = {"registers": used.registers, "spills": spills, "stack": used.stack}
            made[f"launch {number}"] |= {**resources, "static smem": used.static_smem}
    return made


def of_cpu(folder: Path) -> dict[str, Any]:
    """Return what is compared of the files that compilations for the CPU wrote: IR, and the size of the machine code."""
    from llvmlite import binding

    def code_size(file: Path) -> int:
        sections = binding.ObjectFileRef.from_path(str(file)).sections()
        return sum(section.size() for section in sections if section.is_text())

    files = sorted(folder.iterdir(), key=lambda file: (file.stat().st_mtime_ns, file.name))
    texts = [normalise.ir(file.read_text()) for file in files if file.suffix == ".mlir"]
    sizes = [code_size(file) for file in files if file.suffix == ".o"]
    made: dict[str, Any] = {f"IR {number}": text for number, text in enumerate(texts)}
    return made | {f"object {number}": {"bytes of code": size} for number, size in enumerate(sizes)}


def compile_case(call: Callable[[], Any], target: str, sass: bool) -> dict[str, Any]:
    """Compile one case and return what is compared of it."""
    import kiln
    from kiln.testing import dry_run

    with tempfile.TemporaryDirectory() as place:
        os.environ["CUTE_DSL_DUMP_DIR"] = place
        try:
            if target == "cpu":
                with kiln.target("cpu"):
                    call()
                return of_cpu(Path(place))
            with dry_run(target) as launches:
                call()
            return of_gpu(launches, sass)
        except Exception as failure:
            said = "".join(traceback.format_exception_only(failure))
            return {"error": said.replace(str(checkout()), "").replace(place, "")}


def compile_cases(target: str, out: Path, names: list[str], sass: bool) -> None:
    """Compile cases; each writes a file below a folder, when it is done."""
    if target == "cpu":
        os.environ["CUTE_DSL_KEEP"] = "ir,object"
        os.environ["KILN_CPU_THREADS"] = "1"
    sys.path += [str(folder) for folder in {file.parent for file in (checkout() / "tests").glob("**/mutants/*.py")}]
    sys.path.append(str(checkout() / "tests" / "helpers"))
    known = cases(target)
    said = io.StringIO()  # one for all: a program may keep it
    for name in names:
        folder = out / target / name
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            made: dict[str, Any] = (
                compile_case(known[name], target, sass) if name in known else {"error": "there is no such case"}
            )
        made["seconds"] = round(time.perf_counter() - started, 2)
        part = folder / f"{RESULT}.{os.getpid()}"
        part.write_bytes(gzip.compress(json.dumps(made).encode(), 4))
        part.rename(folder / RESULT)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--list", action="store_true")
    options.add_argument("--target", default="cpu")
    options.add_argument("--out", type=Path)
    options.add_argument("--sass", action="store_true", help="run ptxas too, and compare what it gives")
    options.add_argument("names", nargs="*")
    asked = options.parse_args()
    if asked.list:
        print("\n".join(f"{target}\t{name}" for target in TARGETS for name in cases(target)))
        return
    compile_cases(asked.target, asked.out, asked.names, asked.sass)


if __name__ == "__main__":
    main()
