"""Write `src/cutlass-stubs`, by which editors and type checkers see Kiln under the name `cutlass`.

    python tools/alias_stubs.py            # write the stubs
    python tools/alias_stubs.py --check    # exit with 1 if they are not up to date

At run time `cutlass` is `kiln` (see `kiln._alias`), which no type checker can know. A stub re-exports the module that
the alias gives, for every module that programs import by name.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from kiln import _alias  # noqa: E402

STUBS = ROOT / "src" / "cutlass-stubs"
PUBLIC = (
    "__init__.py",
    "base_dsl/__init__.py",
    "base_dsl/compiler.py",
    "base_dsl/dsl.py",
    "base_dsl/typing.py",
    "cuda.py",
    "cute/*.py",
    "cute/arch/*.py",
    "cute/experimental/*.py",
    "cute/export/*.py",
    "cute/nvgpu/**/*.py",
    "cutlass_dsl.py",
    "experimental/**/*.py",
    "jax/*.py",
    "pipeline/__init__.py",
    "testing.py",
    "torch.py",
    "utils/**/*.py",
    "vector.py",
)
"""The modules of Kiln that programs import as parts of `cutlass`, as patterns of files."""

ANY = '''"""The MLIR bindings, which carry no types."""

from typing import Any

def __getattr__(name: str) -> Any: ...
'''


def stubs() -> dict[str, str]:
    """Return the text of each stub by its path in the folder of stubs."""
    source = ROOT / "src" / "kiln"
    names = {
        file.relative_to(source).with_suffix("").as_posix().removesuffix("__init__").rstrip("/").replace("/", ".")
        for pattern in PUBLIC
        for file in source.glob(pattern)
    }
    names = {name for name in names if not any(part.startswith("_") for part in name.split("."))}
    names |= {name for name in _alias._MOVED if not name.startswith("_")}
    packages = {name.rpartition(".")[0] for name in names}
    found = {"py.typed": "partial\n", "_mlir/__init__.pyi": ANY, "_mlir/dialects/__init__.pyi": ANY}
    for name in sorted(names | packages):
        path = name.replace(".", "/")
        file = f"{path}/__init__.pyi".lstrip("/") if name in packages else f"{path}.pyi"
        real = _alias.real_name(f"{_alias.ALIAS}.{name}" if name else _alias.ALIAS)
        there = source.joinpath(*real.split(".")[1:])
        exists = there.is_dir() or there.with_suffix(".py").is_file()
        found[file] = f"from {real} import *\n" if exists else "\n"
    return found


def main(argv: list[str]) -> int:
    """Write the stubs, or compare them with what they should be."""
    wanted = stubs()
    there = {p.relative_to(STUBS).as_posix(): p.read_text() for p in STUBS.rglob("*") if p.is_file()}
    if "--check" in argv:
        wrong = sorted(path for path in wanted.keys() | there.keys() if wanted.get(path) != there.get(path))
        print("\n".join(wrong))
        return bool(wrong)
    shutil.rmtree(STUBS, ignore_errors=True)
    for path, text in wanted.items():
        file = STUBS / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
