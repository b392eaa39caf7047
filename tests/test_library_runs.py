"""`tools/library_runs.py` counts modules that import; in the long stage, FlashInfer's of a wheel from the package index."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_PATH = sys.path[:]
sys.path[:0] = [str(ROOT / "tools")]

import library_runs  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path[:] = _PATH  # other tests mean their own helpers by the names of tools

FLASHINFER = "flashinfer-python==0.7.2.post1"
NEEDED = (
    "requests",
    "urllib3",
    "idna",
    "certifi",
    "charset-normalizer",
    "click",
    "einops",
    "tabulate",
    "ninja",
    "filelock",
    "triton",
    "quack-kernels==0.6.5",
    "torch-c-dlpack-ext",
    "safetensors",
    "rich",
)
"""What FlashInfer's modules import at the top, without CuTe DSL."""


def test_every_way_in_which_a_module_fails(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "good.py": "import cutlass.cute as cute\nprint('not an answer')\n",
        "missing.py": "from cutlass import there_is_no_such_name\n",
        "leaves.py": "import cutlass, os\nos._exit(3)\n",
        "other.py": "import os\n",
        "sub/__init__.py": "import cutlass\n",
        "data/copy.py": "import cutlass\n",
        "no-module.py": "import cutlass\n",
        "late.py": "import cutlass, time\ntime.sleep(600)\n",
    }
    for name, text in files.items():
        (tmp_path / "made_up" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made_up" / name).write_text(text)
    assert list(library_runs.packages(tmp_path)) == ["made_up"]
    (tmp_path / "made_up" / "late.py").unlink()
    outcomes = library_runs.imported(tmp_path, "made_up", 60)
    assert outcomes.pop("made_up.missing").startswith("ImportError: cannot import name 'there_is_no_such_name'")
    assert outcomes == {"made_up.good": "", "made_up.leaves": "the process ended with status 3", "made_up.sub": ""}
    assert library_runs.imported(tmp_path, "made_up", 0.01)["made_up.good"] == "not within 0 s"


@pytest.mark.skipif(os.environ.get("KILN_LONG_TESTS", "") in ("", "0"), reason="it takes minutes: make test STAGE=long")
def test_modules_of_flashinfer_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    try:
        library_runs.install(NEEDED, tmp_path / "needed")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'needed'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        _, _, outcomes = library_runs.measure(FLASHINFER, 1200)
    except OSError as unreachable:
        pytest.skip(f"the package index cannot be reached: {unreachable}")
    errors = {name: error for name, error in outcomes.items() if error}
    (row,) = [row for row in library_runs.recorded()[0] if "==".join(row[:2]) == FLASHINFER]
    at_least, of = map(int, row[2].split(" of "))
    assert len(outcomes) == of
    assert len(outcomes) - len(errors) >= at_least, errors


def test_records_are_counted(tmp_path: Path) -> None:
    head = "library\tversion\tkind\tresult\treason\n"
    rows = [
        ("made-up", "1.0", "kernel", "pass", ""),
        ("made-up", "1.0", "kernel", "fail", 'has no "x'),
        ("made-up", "1.1", "kernel", "pass", ""),
    ]
    (tmp_path / "a.tsv").write_text(head + "".join("\t".join(row) + "\n" for row in rows))
    (tmp_path / "b.tsv").write_text(head + "made-up\t1.0\tkernel\tpass\t\nmade-up\t1.0\ttest\tpass\t\n")
    assert library_runs.counts("made-up", "1.0", "kernel", tmp_path) == "2 of 3"
    assert library_runs.counts("made-up", "1.0", "test", tmp_path) == "1 of 1"
    assert library_runs.counts("made-up", "2.0", "test", tmp_path) is None
