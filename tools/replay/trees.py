"""Checkouts of revisions, and what they gave: kept in a folder outside of the repository, for all worktrees of a machine."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine_code

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclasses.dataclass(frozen=True)
class Tree:
    """A checkout, and the folder of the cache that its results are in."""

    checkout: Path
    results: Path
    label: str


class Cache:
    """The folder for checkouts of revisions and for results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def revision(self, name: str) -> Tree:
        """Return the tree of a revision."""
        commit = git("rev-parse", name + "^{commit}")
        checkout = self.folder / "checkouts" / commit[:12]
        if not checkout.is_dir():
            checkout.parent.mkdir(exist_ok=True)
            files = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
            part = Path(tempfile.mkdtemp(dir=checkout.parent))
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                archive.extractall(part, filter="data")
            try:
                part.rename(checkout)
            except OSError:  # another process was faster
                assert checkout.is_dir()
        return self.tree(checkout, commit[:10])

    def tree(self, checkout: Path, label: str) -> Tree:
        """Return the tree of a checkout."""
        return Tree(checkout, self.folder / "results" / f"{_sources(checkout)}-{_corpus()}", label)

    def stand_in(self) -> Path:
        """Return the path of a ptxas that does nothing."""
        path = self.folder / "ptxas-stand-in"
        if not path.exists():
            part = Path(tempfile.mkstemp(dir=self.folder)[1])
            part.write_text(machine_code.STAND_IN)
            part.chmod(0o755)
            part.rename(path)
        return path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _digest(files: Sequence[Path], root: Path) -> Any:
    made = hashlib.sha256()
    for file in sorted(files):
        made.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return made


def _sources(checkout: Path) -> str:
    """Return a digest of all that a tree's results depend on."""
    files = [file for file in (checkout / "src").rglob("*") if file.suffix in (".py", ".json", ".c", ".h", ".ll")]
    files += [*(checkout / "examples").rglob("*.py"), *(checkout / "tests").glob("**/mutants/*.py")]
    return _digest(files, checkout).hexdigest()[:12]


def _corpus() -> str:
    """Return a digest of the corpus and of the packages that compile it."""
    names = ("corpus", "normalise", "library_calls", "library_variants", "operation_kernels")
    made = _digest([HERE / f"{name}.py" for name in names], HERE)
    made.update(f"{sys.version} {importlib.metadata.version('llvmlite')}".encode())
    return made.hexdigest()[:12]
