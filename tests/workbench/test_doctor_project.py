"""`kiln doctor --project` names what a code base asks of `cutlass` that Kiln lacks, from its syntax."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln._support import unavailable
from kiln.base_dsl import settings
from kiln.workbench import doctor, doctor_project
from kiln.workbench.core import cutlass_uses

NEWEST = settings.CUTLASS_VERSIONS[-1]

GOOD = '''
"""Not a use: cutlass.nowhere, sm_777."""
import cutlass
import cutlass.cute as cute
from cutlass.cute import arch as a
from cutlass.cute.nvgpu import tcgen05

major = tcgen05.OperandMajorMode.MN

@cute.kernel
def kernel(x: cute.Tensor, n: cutlass.Constexpr):
    a.barrier(barrier_id=1, number_of_threads=32)
    layout = cute.make_layout((4, 8), stride=(8, 1))
    cute.brand_new()  # of patches.py
    names = [cute.nowhere for cute in (x, x)]
    return lambda cutlass: cutlass.nowhere, getattr(cute, "maybe_there", None), cute.maybe_there

def other(cute):
    cute.nowhere()
    for cutlass in cute:
        cutlass.nowhere.at_all()
'''

BAD = """
import cutlass.nowhere.at_all
from cutlass import cute, nothing
from cutlass.made_up_internals import Preprocessor
try:
    from cutlass.cute import iket_of_tomorrow as iket
except ImportError:
    iket = None

m = cute.arch

def kernel():
    cute.make_layout(1, strides=0)
    cute.rank(1, 2, 3, 4, 5)
    m.fence_of_nobody(); m.fence_of_nobody()
    iket.mark("a")

class Copy(cute.nvgpu.cpasync.CopyG2SOp):
    def __init__(self):
        super().__init__(kinds=2)
        super().make_trait_of_tomorrow()

    def from_elsewhere(self, of):
        return [self.nobody, super(Copy, self).nobody, of.nobody]

class Other(Copy, cute.CopyAtom):
    def make(self):
        return super().make_anything()

__import__("cutlass.cute.absent_by_path")
"""

PATCHES = """
import sys
from importlib import import_module, util
from importlib.metadata import version
from unittest import mock
import cutlass
from cutlass import cute
from cutlass.base_dsl.dsl import BaseDSL

BaseDSL.print_warning = print
setattr(cute, "brand_new", 1)
cute.brand_new
mock.patch("cutlass.cute.size")
mock.patch.object(cute, "rank")
sys.modules["cutlass.cute.absent"] = None
if util.find_spec("cutlass.iket_by_path"):
    import_module("cutlass.iket_by_path")
if version("nvidia-cutlass-dsl") < "4.5" or cutlass.__version__ < "4.5":
    raise ImportError("it needs nvidia-cutlass-dsl>=4.5.0, <99")
ARCHS = ("sm_90a", "sm_100f", "sm_999", "wasm_90", cute.arch.Arch.sm_103a) if hasattr(cute.arch, "Arch") else ()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(unavailable.MODULES, "made_up_internals", "it is an internal")
    files = {
        "good.py": GOOD,
        "sub/bad.py": BAD,
        "sub/patches.py": PATCHES,
        "unrelated.py": "import os\n",
        "broken.py": "import cutlass\nif:\n",
        "requirements/cuda.txt": "nvidia-cutlass-dsl==4.7.0\n",
        "requirements/README.md": "nvidia-cutlass-dsl==4.7.1\n",
        "docker/Dockerfile.dev": "RUN pip install 'nvidia-cutlass-dsl[cu13]>=9'\n",
        "requirements-gpu.txt": "torch\nnvidia-cutlass-dsl[cu13]==4.4.*  # pinned\n# nvidia-cutlass-dsl==1\n",
        "pyproject.toml": 'dependencies = [\n "nvidia_cutlass_dsl >= 0.0.1, < 99",\n]\n',
        "third_party/old.py": "import cutlass.gone\n",
        "vendor/cutlass/__init__.py": "from cutlass import their_own\n",
        ".venv/lib.py": "import cutlass.hidden\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(report: doctor_project.Report, group: str) -> dict[str, list[str]]:
    return {one.name: list(one.places) for one in report.findings if one.group == group}


def test_what_kiln_lacks_is_named_with_every_place(project: Path) -> None:
    report = doctor_project.examine(project, ["third_party"])
    assert found(report, "lacking") == {
        "cutlass.nowhere": ["sub/bad.py:2"],
        "cutlass.nothing": ["sub/bad.py:3"],
        "cutlass.made_up_internals": ["sub/bad.py:4"],
        "cutlass.cute.arch.fence_of_nobody": ["sub/bad.py:15"],
        "cutlass.cute.make_layout(strides=)": ["sub/bad.py:13"],
        "cutlass.cute.rank: argument 5": ["sub/bad.py:14"],
        "cutlass.cute.nvgpu.cpasync.CopyG2SOp.__init__(kinds=)": ["sub/bad.py:20"],
        "cutlass.cute.nvgpu.cpasync.CopyG2SOp.make_trait_of_tomorrow": ["sub/bad.py:21"],
        "cutlass.cute.absent_by_path": ["sub/bad.py:30"],
    }
    kinds = {one.name: (one.kind, one.why) for one in report.findings if one.group == "lacking"}
    assert kinds["cutlass.nowhere"] == ("module", "")
    assert kinds["cutlass.made_up_internals"] == ("module", "placeholder: it is an internal")
    assert (
        kinds["cutlass.cute.make_layout(strides=)"][0] == "keyword"
        and "stride" in kinds["cutlass.cute.make_layout(strides=)"][1]
    )
    assert found(report, "optional") == {
        "cutlass.cute.iket_of_tomorrow": ["sub/bad.py:6", "sub/bad.py:16"],
        "cutlass.cute.maybe_there": ["good.py:16"],
        "cutlass.iket_by_path": ["sub/patches.py:17"],
        "cutlass.cute.brand_new": ["good.py:14", "sub/patches.py:12"],
    }
    assert (report.served, report.modules, report.unreadable) == (2, 3, ["broken.py"])


def test_patches_versions_and_architectures(project: Path) -> None:
    report = doctor_project.examine(project, ["third_party"])
    assert found(report, "patched") == {
        "cutlass.base_dsl.dsl.BaseDSL.print_warning": ["sub/patches.py:10"],
        "cutlass.cute.absent": ["sub/patches.py:15"],
        "cutlass.cute.brand_new": ["sub/patches.py:11"],
        "cutlass.cute.rank": ["sub/patches.py:14"],
        "cutlass.cute.size": ["sub/patches.py:13"],
    }
    absent = {one.name for one in report.findings if one.group == "patched" and not one.served}
    assert absent == {"cutlass.cute.absent", "cutlass.cute.brand_new"}
    assert found(report, "version") == {
        "==4.4.*": ["requirements-gpu.txt:2"],
        "==4.7.0": ["requirements/cuda.txt:1"],
        ">=9": ["docker/Dockerfile.dev:1"],
        ">=0.0.1,<99": ["pyproject.toml:2"],
        ">=4.5.0,<99": ["sub/patches.py:19"],
        "read by the program": ["sub/patches.py:18"],
    }
    served = {one.name: one.served for one in report.findings if one.group in ("version", "architecture")}
    assert not served["==4.4.*"] and served[">=0.0.1,<99"]
    why = {one.name: one.why for one in report.findings if one.group == "version"}
    assert why["==4.4.*"] == f"Kiln serves {NEWEST}, or another: KILN_CUTLASS_VERSION=4.4.2" and not served["==4.4.*"]
    assert why[">=9"] == f"Kiln serves {NEWEST}" and not served[">=9"]
    assert {name: served[name] for name in ("sm_90a", "sm_100f", "sm_103a", "sm_999")} == {
        "sm_90a": True,
        "sm_100f": True,
        "sm_103a": True,
        "sm_999": False,
    }
    assert "sm_90" not in served and "sm_777" not in served


def test_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--project", str(project)]) == 1
    text = capsys.readouterr().out
    assert "    1  module cutlass.gone: third_party/old.py:1\n" in text
    assert text.splitlines()[-1] == "2 of 4 modules use only what Kiln has"
    (project / "sub" / "bad.py").unlink()
    assert doctor.main(["--project", str(project), "--exclude", "third_party", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["summary"] == "2 of 2 modules use only what Kiln has"
    assert {one["group"] for one in answer["findings"]} == {"optional", "patched", "version", "architecture"}
    assert doctor.main(["--project", str(project / "nothing")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_large_code_bases_are_read_by_several_processes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = doctor_project.examine(project)
    monkeypatch.setattr(doctor_project, "_LARGE", 0)
    assert doctor_project.examine(project) == alone


@pytest.mark.parametrize(
    ("specifier", "yes", "no"),
    [
        (">=4.5", "4.5.0 4.8.1 5.0", "4.4.9 4"),
        (">4.5", "4.5.1", "4.5 4.5.0"),
        ("<=4.5.0", "4.5 4.4.9", "4.5.1"),
        ("<4.10", "4.9.1 4.8", "4.10"),
        ("==4.8.*", "4.8.1 4.8", "4.7.1 4.80"),
        ("!=4.8.*", "4.7.1", "4.8.1"),
        ("==4.8", "4.8.0", "4.8.1"),
        ("!=4.8", "4.8.1", "4.8.0"),
        ("~=4.8.1", "4.8.1 4.8.9", "4.8.0 4.9"),
        ("~=4.5", "4.5 4.9", "4.4 5.0"),
    ],
)
def test_versions(specifier: str, yes: str, no: str) -> None:
    assert {version: doctor_project._allows(specifier, version) for version in yes.split()} == dict.fromkeys(
        yes.split(), True
    )
    assert {version: doctor_project._allows(specifier, version) for version in no.split()} == dict.fromkeys(
        no.split(), False
    )


def test_imports_in_functions_classes_and_type_checking() -> None:
    uses = cutlass_uses.read(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import cutlass.a\n"
        "class C:\n    import cutlass.b as b\n    x = b.y\n"
        "def f():\n    import cutlass.c\n    cutlass.c.z(*[1], k=2)\n"
        "cutlass.unbound\n"
    )
    assert {
        (use.kind, use.name, use.optional, use.keywords, use.positional): lines for use, lines in uses.uses.items()
    } == {
        ("module", "cutlass.a", True, (), 0): [3],
        ("module", "cutlass.b", False, (), 0): [5],
        ("name", "cutlass.b.y", False, (), 0): [6],
        ("module", "cutlass.c", False, (), 0): [8],
        ("call", "cutlass.c.z", False, ("k",), 0): [9],
        ("name", "cutlass.c.z", False, (), 0): [9],
        ("name", "cutlass.unbound", False, (), 0): [10],
    }
