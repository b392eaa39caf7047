"""The registry of targets and the calling convention."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kiln.base_dsl import target as registry
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.base_dsl.target import Target, get_target, register_target, slot_layout, target, target_names
from kiln.mlir import context, ir


class Toy(Target):
    name = "toy"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_loaders", dict(registry._loaders))
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    monkeypatch.setattr(registry, "_process_choice", "")
    monkeypatch.delenv("KILN_TARGET", raising=False)
    yield


def test_the_cpu_is_there() -> None:
    assert get_target("cpu").name == "cpu"
    assert get_target("cpu") is get_target("cpu")
    assert "cpu" in target_names()


def test_registered_targets_are_loaded_once() -> None:
    loads: list[int] = []
    register_target("toy", lambda: loads.append(1) or Toy())
    assert loads == []
    assert get_target("toy") is get_target("toy")
    assert loads == [1]


def test_unknown_names() -> None:
    with pytest.raises(DSLRuntimeError, match="no target 'cpi'") as caught:
        get_target("cpi")
    assert "did you mean 'cpu'?" in str(caught.value)
    with pytest.raises(DSLRuntimeError):
        target("cpi")


def test_environment_and_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    register_target("toy", Toy)
    monkeypatch.setenv("KILN_TARGET", "toy")
    assert get_target().name == "toy"
    target("cpu")
    assert get_target().name == "cpu"
    with target("toy") as inside:
        assert inside.name == "toy"
        assert get_target().name == "toy"
        with target("cpu"):
            assert get_target().name == "cpu"
        assert get_target().name == "toy"
        names: list[str] = []
        thread = threading.Thread(target=lambda: names.append(get_target().name))
        thread.start()
        thread.join()
        assert names == ["cpu"]
    assert get_target().name == "cpu"


def test_slot_layout() -> None:
    with context():
        types = [ir.Type.parse(t) for t in (
            "i1", "i8", "i64", "i128", "f16", "!llvm.ptr", "!llvm.struct<(ptr, i32)>", "f64", "vector<4xf32>",
            "!llvm.struct<(i8, i64, i8)>", "!llvm.array<3 x i32>", "i4",
        )]  # fmt: skip
    offsets, total = slot_layout(types)
    assert offsets == [0, 8, 16, 24, 40, 48, 56, 72, 80, 96, 120, 136]
    assert total == 144


def test_slots_refuse_other_types() -> None:
    with context(), pytest.raises(DSLRuntimeError, match="tensor<4xf32> cannot cross"):
        slot_layout([ir.Type.parse("tensor<4xf32>")])
