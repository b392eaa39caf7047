"""`benchmarks/libraries.py` fills its tables, without a GPU and without the libraries."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("libraries", "normal_data", "results"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import libraries

    for table in libraries.PAGE.tables:
        table.rows.clear()
    return libraries


def timed(calls: dict[str, Any], **_: Any) -> Any:
    """In place of `measure.compare`: a call takes 100 us for each letter of its name."""
    return types.SimpleNamespace(measurements={name: types.SimpleNamespace(us=100.0 * len(name)) for name in calls})


def test_rows(libraries: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(libraries.measure, "compare", timed)
    x = torch.ones(4, 8)
    calls = {who: lambda: x * 2 for who in ("library", "Kiln", "torch", "compiled")} | {"copy": libraries.copying(x)}
    row = libraries.Case(libraries.MEMORY_BOUND, ("double", "4 x 8", "float32"), calls, 512e-12, lambda: x * 2, 0.0)
    row.check()
    row.add()
    # 700 us of the library, 400 us of a copy that moves half as many bytes
    cells = ("double", "4 x 8", "float32", "500.0", "800.0", "700.0", "400.0", "0.00", "1.14", "1.14", "-")
    assert libraries.MEMORY_BOUND.rows == [cells]

    calls = {who: lambda: x for who in ("library", "Kiln", "torch")}
    row = libraries.Case(libraries.GEMMS, ("gemm", "s", "t"), calls, 0.35, lambda: x, 0.0, "said", "cuBLAS")
    row.add()
    assert libraries.GEMMS.rows == [
        ("gemm", "s", "t", "cuBLAS", "500.0", "700.0", "400.0", "500", "0.71", "1.75", "said")
    ]
    assert "| torch.compile / QuACK |" in capsys.readouterr().out


def test_wrong_results_are_refused(libraries: Any) -> None:
    x = torch.ones(4)
    row = libraries.Case(libraries.GEMMS, ("", "", ""), {"Kiln": lambda: (x + 1, None)}, 1.0, lambda: x, 0.1)
    with pytest.raises(AssertionError, match="Kiln: "):
        row.check()


def test_bare_package_of_flash_attn(libraries: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "flash_attn" / "cute" / "part.py").write_text("here = 3")
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    libraries.load([str(tmp_path)])
    from flash_attn.cute import part

    assert part.here == 3


@pytest.mark.quick(0)
def test_help() -> None:
    command = [sys.executable, BENCHMARKS / "libraries.py", "--help"]
    assert "PATH" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
