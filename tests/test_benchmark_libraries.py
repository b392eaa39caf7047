"""`benchmarks/libraries.py` fills its tables, without a GPU and without the peers."""

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
    for name in ("libraries", "normal_data", "peers", "results"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import libraries

    for table in libraries.PAGE.tables:
        table.rows.clear()
    monkeypatch.setattr(libraries.measure, "compare", timed)
    return libraries


def timed(calls: dict[str, Any], **_: Any) -> Any:
    """In place of `measure.compare`: a call takes 100 us for each letter of its name."""
    return types.SimpleNamespace(measurements={name: types.SimpleNamespace(us=100.0 * len(name)) for name in calls})


def doubled(x: Any) -> Any:
    return lambda: lambda: x * 2


def test_rows_are_compiled_without_tuning(libraries: Any) -> None:
    def peer(name: str) -> Any:
        return lambda: lambda: called.append(name)

    called: list[str] = []
    peers = {name: peer(name) for name in ("cuBLAS", "QuACK*", "torch.compile", "PyTorch")}
    for table, expected in ((libraries.GEMMS, ["Kiln"]), (libraries.MEMORY, ["Kiln", "QuACK*", "torch.compile"])):
        called.clear()
        libraries._compile_row(libraries.row(table, ("", "", ""), peers, peer("Kiln")(), 1.0, absent, 0.0))
        assert called == expected


def absent() -> Any:
    raise ModuleNotFoundError("No module named 'quack'")


def test_memory_bound_rows(libraries: Any, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(4, 8)
    row = libraries.memory_bound("double", x, (x,), lambda x: x * 2, absent, lambda: x * 2, 2)
    row.peers["torch.compile"] = row.peers["PyTorch"]
    row.prepare()
    row.check()
    row = row._replace(work=512e-12, copied=256e-12)
    row.add()
    # 400 us of Kiln for 512 bytes, 400 us of a copy that moves half as many; PyTorch's 700 us are the best peer's
    cells = (
        "double",
        "4 x 8",
        "float32",
        "700.0",
        "1300.0",
        "- (No module named 'quack')",
        "400.0",
        "0.00",
        "2.00",
        "1.75",
    )
    assert libraries.MEMORY.rows == [cells]
    assert "| QuACK* us |" in capsys.readouterr().out


def test_rows_without_all_peers(libraries: Any) -> None:
    x = torch.ones(4)
    peers = {"cuBLAS": doubled(x), "QuACK*": absent}
    row = libraries.row(libraries.GEMMS, ("gemm", "s", "t"), peers, lambda: x * 2, 0.2, lambda: x * 2, 0.0)
    row.prepare()
    row.check()
    row.add()
    assert libraries.GEMMS.rows == [
        ("gemm", "s", "t", "600.0", "-", "- (No module named 'quack')", "400.0", "500", "1.50")
    ]
    row = libraries.row(libraries.ATTENTION, ("decode", "s", "t"), {}, lambda: x, 0.2, lambda: x, 0.0)
    row.add()
    assert libraries.ATTENTION.rows == [("decode", "s", "t", "-", "-", "-", "-", "400.0", "500", "-")]


def test_a_peer_that_cannot_is_missing_with_its_reason(libraries: Any) -> None:
    def refused() -> Any:
        raise NotImplementedError("no kernel | of this kind\nand more")

    x = torch.ones(4)
    peers = {"cuDNN": doubled(x), "FlashMLA": lambda: refused}
    row = libraries.row(libraries.ATTENTION, ("a", "s", "t"), peers, lambda: x * 2, 1.0, lambda: x * 2, 0.0)
    row.prepare()
    row.check()
    assert (list(row.calls), row.missing) == (["Kiln", "cuDNN"], {"FlashMLA": "no kernel / of this kind"})
    row = libraries.row(libraries.ATTENTION, ("a", "s", "t"), {}, refused, 1.0, lambda: x, 0.0)
    with pytest.raises(NotImplementedError):  # Kiln is not left out
        row.check()


@pytest.mark.parametrize("who", ["Kiln", "cuBLAS"])
def test_wrong_results_are_refused(libraries: Any, who: str) -> None:
    x = torch.ones(4)
    right, wrong = (lambda: (x, x)), (lambda: (x, x + 1))
    calls = {"Kiln": right, "cuBLAS": right} | {who: wrong}
    row = libraries.row(
        libraries.GEMMS, ("", "", ""), {"cuBLAS": lambda: calls["cuBLAS"]}, calls["Kiln"], 1.0, right, 0.1
    )
    row.prepare()
    with pytest.raises(AssertionError, match=f"{who}: "):
        row.check()


def test_the_best_config_counts(libraries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers

    class Event:
        """The time is that of the last call."""

        def __init__(self, **_: Any) -> None:
            pass

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, _: Any) -> float:
            return float(called[-1])

    def call(config: int) -> int:
        if config == 1:
            raise RuntimeError("too much shared memory")
        called.append(config)
        return config

    called: list[int] = []
    monkeypatch.setattr(peers.torch.cuda, "Event", Event)
    assert peers.fastest(call, [5, 1, 3, 4])() == 3
    with pytest.raises(RuntimeError, match="none of 2 configs runs: too much shared memory"):
        peers.fastest(call, [1, 1])


def test_versions_are_those_of_the_peers_that_are_here(libraries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers

    monkeypatch.setitem(sys.modules, "quack", types.SimpleNamespace(__version__="1.2.3"))
    monkeypatch.setitem(sys.modules, "flash_mla", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    cudnn, *others = peers.versions().split(", ")
    assert cudnn.startswith("cuDNN ")
    assert others == ["QuACK 1.2.3"]


def test_rows_are_chosen_by_table_and_function(libraries: Any) -> None:
    everything = list(libraries.chosen("", ""))
    assert len(everything) == len(list(libraries.cases()))
    parts = [list(libraries.chosen(table, "")) for table in ("memory", "gemm", "attention")]
    assert min(map(len, parts)) > 0
    assert sum(map(len, parts)) == len(everything)
    assert {make.func.__name__ for make in libraries.chosen("attention", "mla_decode")} == {"mla_decode"}
    assert list(libraries.chosen("gemm", "mla_decode")) == []


def test_a_row_that_fails_is_shown(libraries: Any, capsys: pytest.CaptureFixture[str]) -> None:
    libraries.measure_row(libraries.functools.partial(absent), False)
    assert "absent (): ModuleNotFoundError: No module named 'quack'" in capsys.readouterr().out


def test_bare_package_of_flash_attn(libraries: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "flash_attn" / "cute" / "part.py").write_text("here = 3")
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", [*sys.path])
    libraries.load([str(tmp_path)])
    from flash_attn.cute import part

    assert part.here == 3


@pytest.mark.quick(0)
def test_help() -> None:
    command = [sys.executable, BENCHMARKS / "libraries.py", "--help"]
    assert "PATH" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
