"""`tools/surface.py`: interfaces are recorded and compared, and Kiln lacks no more of CuTe DSL's than the list says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "surface.py"

PACKAGE = """
import enum
from .inner import helper

class Colour(enum.Enum):
    RED = 1

class Box:
    size: int
    def open(self, wide, *, slowly=False): ...
    @staticmethod
    def make(width, /, height=1): ...
    @property
    def lid(self): ...

def fill(box, *things, until=None, **others): ...

LIMIT = 3
_private = 4
"""

RECORD = """# small, recorded by inspect
# See tools/surface.py for what a line says.

[]
module small

[small]
class Box () | lid make(width, height=) open(wide, *, slowly=)
enum Colour | RED name value
value LIMIT
def fill (box, *things, until=, **others)
module inner

[small.inner]
def helper (x) = small.helper
"""


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", **settings}
    return subprocess.run([sys.executable, TOOL, *words], env=environment, capture_output=True, text=True, check=False)


def test_record_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "small" / "inner.py").write_text("def helper(x): ...\n")
    done = run("record", "small", PYTHONPATH=str(tmp_path))
    assert done.stdout == RECORD, done.stderr


FACTS = """# signatures from something
def cutlass.cute.ceil_div(input: Tuple[int, str] = (1, 'a, b'), tiler: int, *, loc: Optional[X] = None) -> int
      # also: cutlass.ceil_div
def cutlass.cute.printf(format, *args, fresh: Callable[..., int] = None)
def cutlass.cute.rank(mode, a)
def cutlass.cute.composition(lhs)
class cutlass.utils.SmemAllocator(x: 'Long[A, B..., **more)  bases: Generic
    classmethod never_there(a) -> int
    allocate(size) -> int
enum cutlass.cute.ReductionOp: ADD, XYZ
def cutlass.cute.pipeline_of_nobody(x)
"""
COUNTS = """cutlass.cute.nobodys = cutlass.nobodys  [function] files 12 D
## Module paths
2: nowhere.at.all utils
"""
GAPS = {
    "path ceil_div",
    "name 12",
    "name pipeline_of_nobody",
    "parameter printf(fresh)",
    "parameter printf(format)",
    "order rank(mode,",
    "parameter allocate(size)",
    "required composition(rhs)",
    "member never_there",
    "member XYZ",
    "module all",
}


def test_compare_finds_each_kind_of_gap(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text(FACTS)
    (tmp_path / "counts.txt").write_text(COUNTS)
    compacted = run("compact", str(tmp_path / "facts.txt"), str(tmp_path / "counts.txt"))
    assert "def ceil_div (input=, tiler, *, loc=) = cutlass.ceil_div\n" in compacted.stdout, compacted.stderr
    record = tmp_path / "record.txt"
    record.write_text(compacted.stdout)
    done = run("compare", str(record))
    assert done.returncode == 1
    shown = {" ".join(line.split()[:2]) for line in done.stdout.splitlines() if line.startswith("  ")}
    assert shown == GAPS, done.stdout + done.stderr


def test_what_kiln_lacks_is_listed() -> None:
    done = run("check")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_table_of_versions_is_written_from_the_records() -> None:
    done = subprocess.run([sys.executable, TOOL.with_name("surface_versions.py"), "page", "--check"], check=False)
    assert done.returncode == 0, "`make format` writes docs/come-from/cute-dsl.md"
