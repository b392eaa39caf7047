"""Programs write pages of docs/data: what is measured replaces its tables, and other rows stay."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


results = load(ROOT / "benchmarks" / "results.py")


def test_a_page_without_its_command_is_refused() -> None:
    with pytest.raises(ValueError, match="which command"):
        results.parse("# Attention\n\n## Prefill\n")


def test_saving_replaces_measured_tables_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "DATA", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)

    def page() -> tuple[Any, Any, Any]:
        first, second = results.Table("First", ("shape", "Kiln us")), results.Table("Second", ("shape", "Kiln us"))
        return first, second, results.Page(str(tmp_path / "program.py"), "A page", first, second)

    first, second, both = page()
    first.add("8 x 8", "1.0")
    second.add("8 x 8", None)
    both.finish(True)
    first, second, again = page()
    second.add("16 x 16", "2.0")
    again.finish(True)
    again.finish(False)
    kept, new = results.parse((tmp_path / "program.md").read_text()).tables
    assert (kept.rows, new.rows) == ((("8 x 8", "1.0"),), (("16 x 16", "2.0"),))
    assert "| 8 x 8 | - |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="3 cells for 2 columns"):
        second.add("a", "b", "c")


def test_runs_at_a_time_keep_the_rows_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "DATA", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)

    def page() -> tuple[Any, Any]:
        table = results.Table("Runs", ("program", "arguments", "check", "commit"))
        table.order = (("a.py", ""), ("b.py", "--n 1"), ("b.py", "--n 2"))
        return table, results.Page(str(tmp_path / "program.py"), "A page", table)

    (one, first), (other, second) = page(), page()
    one.add("b.py", "--n 2", "fail", "11111111")
    one.add("b.py", "--n 1", "pass", "11111111")
    first.write()
    other.add("a.py", "", "pass", "22222222")
    other.add("b.py", "--n 2", "pass", "22222222")
    second.write()
    (written,) = results.parse((tmp_path / "program.md").read_text()).tables
    assert written.rows == (
        ("a.py", "", "pass", "22222222"),
        ("b.py", "--n 1", "pass", "11111111"),
        ("b.py", "--n 2", "pass", "22222222"),
    )
    assert written.environment.endswith("(newest row; each row names its commit)")


def test_writing_waits_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "DATA", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)

    def write(row: str) -> None:
        table = results.Table("Runs", ("program", "commit"))
        table.add(row, "11111111")
        results.Page(str(tmp_path / "program.py"), "A page", table).write()

    parse, slow = results.parse, 0.05
    monkeypatch.setattr(results, "parse", lambda text: (time.sleep(slow), parse(text))[1])
    write("first")
    threads = [threading.Thread(target=write, args=(f"{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (written,) = parse((tmp_path / "program.md").read_text()).tables
    assert sorted(row[0] for row in written.rows) == ["0", "1", "2", "3", "first"]
    assert [path.name for path in tmp_path.iterdir()] == ["program.md"]


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert results.commit() is None
