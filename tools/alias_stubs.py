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


def homes(name: str) -> list[str]:
    """Return the modules of Kiln whose names a path of the interface has."""
    if not name:
        return [_alias.REAL]
    path = name if name.partition(".")[0] in (_alias.ALIAS, _alias.REAL) else f"{_alias.ALIAS}.{name}"
    several = _alias.PATHS.get(path, path).split()
    return [_alias.real_name(path)] if len(several) == 1 else sorted(home for path in several for home in homes(path))


def _exists(module: Path) -> bool:
    return module.is_dir() or module.with_suffix(".py").is_file()


def stubs() -> dict[str, str]:
    """Return the text of each stub by its path in the folder of stubs."""
    source = ROOT / "src" / "kiln"
    names = {
        file.relative_to(source).with_suffix("").as_posix().removesuffix("__init__").rstrip("/").replace("/", ".")
        for pattern in PUBLIC
        for file in source.glob(pattern)
    }
    names = {name for name in names if not any(part.startswith("_") for part in name.split("."))}
    names |= {path.partition(".")[2] for path in _alias.PATHS if "._" not in path}
    packages = {name.rpartition(".")[0] for name in names}
    found = {"py.typed": "partial\n", "_mlir/__init__.pyi": ANY, "_mlir/dialects/__init__.pyi": ANY}
    for name in sorted(names | packages):
        path = name.replace(".", "/")
        file = f"{path}/__init__.pyi".lstrip("/") if name in packages else f"{path}.pyi"
        there = [home for home in homes(name) if _exists(source.joinpath(*home.split(".")[1:]))]
        lines = [f"from {home} import *\n" for home in there] + ["\n__version__: str\n"] * (not name)
        found[file] = "".join(lines) or "\n"
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
