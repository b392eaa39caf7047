"""`tools/surface.py`: interfaces are recorded and compared, and Kiln lacks no more of CuTe DSL's than the list says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "surface.py"
_PATH = sys.path[:]
sys.path[:0] = [str(TOOL.parent)]

import surface  # noqa: E402  # pyright: ignore[reportMissingImports]
import surface_versions  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path[:] = _PATH  # other tests mean their own helpers by the names of tools

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


BEFORE = """# 4.8.1
[cutlass.cute]
def ceil_div (input, tiler, *, loc=, ip=)
def full_like
def of_yesterday (x)
class CopyAtom () | of_yesterday thr_id
"""
AFTER = """# 4.10.0
[cutlass.cute]
def ceil_div (input, by, *, loc=, ip=)
def of_tomorrow 3 (x)
class CopyAtom () | of_tomorrow thr_id
class BoxOfTomorrow (x) | make(y)
"""


def test_a_version_begins_with_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(surface_versions.PAGE.read_text())
    monkeypatch.setattr(surface, "HERE", tmp_path)
    monkeypatch.setattr(surface, "LACKING", tmp_path / "lacking.txt")
    monkeypatch.setattr(surface_versions, "PAGE", page)
    monkeypatch.setattr(surface_versions, "gaps", lambda: iter(()))
    (tmp_path / "surface_4_8_1.txt").write_text(BEFORE)
    (tmp_path / "lacking.txt").write_text(
        "# list\nmember cutlass.cute.CopyAtom.of_yesterday\nname cutlass.cute.of_yesterday\n"
    )
    assert surface.main(["check"]) == 0
    (tmp_path / "surface_4_10_0.txt").write_text(AFTER)
    assert surface.main(["check"]) == 1
    assert surface.main(["begin"]) == 0 == surface.main(["check"])
    listed = (tmp_path / "lacking.txt").read_text().splitlines()[1:]
    assert listed == [
        "member cutlass.cute.CopyAtom.of_tomorrow",
        "name cutlass.cute.BoxOfTomorrow",
        "name cutlass.cute.of_tomorrow",
        "older cutlass.cute.CopyAtom.of_yesterday",
        "older cutlass.cute.of_yesterday",
        "parameter cutlass.cute.ceil_div(by)",
    ]
    said = (
        "Of 4.10.0, 4 names are recorded. Kiln lacks 2, of which public libraries use 1; besides 1 members of classes"
    )
    assert f"{said}, 1 parameters, 2 names of older versions.\n" in page.read_text()
    (tmp_path / "lacking.txt").write_text("\n".join(["# list", *(line for line in listed if "older" not in line)]))
    assert surface.main(["check"]) == 1  # a name that a version drops is not lost


def test_what_kiln_lacks_is_listed() -> None:
    done = run("check")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_table_of_versions_is_written_from_the_records() -> None:
    done = subprocess.run([sys.executable, TOOL.with_name("surface_versions.py"), "page", "--check"], check=False)
    assert done.returncode == 0, "`make format` writes docs/come-from/cute-dsl.md"
