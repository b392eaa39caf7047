"""Make the object code that packages carry, of every native library of Kiln: `python tools/native_objects.py [--here]`.

It is made for every architecture, or for this machine's. It lies in `src/kiln/__native__`, where the processes that need it look first (`kiln/targets/host/native_objects.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import pkgutil
import sys
from collections.abc import Collection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import kiln.interop
import kiln.targets
from kiln.llvm import binding as llvm
from kiln.native import Library
from kiln.targets.host import jit, native_objects


def _is_native(name: str) -> bool:
    """Whether a module may have native functions: the others of interop need PyTorch, JAX or TVM-FFI."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin or "").read_text() if spec is not None else ""
    return not name.startswith("kiln.interop.") or "native import" in source


def libraries() -> dict[str, Library]:
    """All of Kiln's, by name."""
    rooms = (kiln.interop, kiln.targets)
    names = [found.name for room in rooms for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    values = [value for name in filter(_is_native, names) for value in vars(importlib.import_module(name)).values()]
    return {value.name: value for value in values if isinstance(value, Library)}


def remove_others(known: Collection[str]) -> None:
    """Remove the object code of libraries that are gone, which a wheel would carry."""
    for file in Path(native_objects.FOLDER).glob("*.o"):
        if file.name.partition(".")[0] not in known:
            file.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="for this machine's architecture only")
    architectures = [jit.common()[0]] if parser.parse_args().here else list(native_objects.COMMON)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    missing, known = 0, libraries()
    remove_others(known)
    for name, library in sorted(known.items()):
        for architecture in filter(None, architectures):
            if native_objects.kept(name, architecture) is None:
                data = jit.native_object(library, jit.common_processor(architecture))
                native_objects.keep(library, architecture, data)
                missing += native_objects.kept(name, architecture) is None
                print(f"{name} for {architecture}: {len(data)} bytes", flush=True)
    if missing:
        print(f"{native_objects.FOLDER} cannot be written", file=sys.stderr)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
