"""The registry of environment settings."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from kiln.base_dsl import settings
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.base_dsl.log import logger


def test_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTE_DSL_PRINT_IR", raising=False)
    assert settings.get("CUTE_DSL_PRINT_IR") is False
    monkeypatch.setenv("CUTE_DSL_PRINT_IR", "1")
    assert settings.get("CUTE_DSL_PRINT_IR") is True
    monkeypatch.setenv("CUTE_DSL_PRINT_IR", "")
    assert settings.get("CUTE_DSL_PRINT_IR") is False


def test_every_default_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name in settings.SETTINGS:
        settings.get(name)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUTE_DSL_PRINT_IR", "maybe", "takes 0 or 1"),
        ("CUTE_DSL_LOG_LEVEL", "loud", "not an integer"),
        ("CUTE_DSL_LOG_LEVEL", "99", "outside 0 to 50"),
        ("CUTE_DSL_ARCH", "sm_1", "expected one of sm_80"),
        ("CUTE_DSL_KEEP", "ptx,sas", "unknown: sas"),
        ("KILN_CPU_THREADS", "0", "outside 1 to 256"),
    ],
)
def test_bad_values(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DSLRuntimeError) as caught:
        settings.get(name)
    assert name in str(caught.value)
    assert words in str(caught.value)


def test_debug_raises_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTE_DSL_LINEINFO", raising=False)
    monkeypatch.setenv("CUTE_DSL_DEBUG", "1")
    assert settings.get("CUTE_DSL_LINEINFO")
    assert not settings.get("CUTE_DSL_FILTER_STACKTRACE")
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "0")
    assert not settings.get("CUTE_DSL_LINEINFO")


def test_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUTE_DSL_KEEP", "CUTE_DSL_KEEP_IR", "KILN_DUMP"):
        monkeypatch.delenv(name, raising=False)
    assert settings.kept() == frozenset()
    monkeypatch.setenv("CUTE_DSL_KEEP", "ir, PTX")
    monkeypatch.setenv("CUTE_DSL_KEEP_SASS", "1")
    assert settings.kept() == {"ir", "ptx", "sass"}
    monkeypatch.setenv("CUTE_DSL_KEEP", "passes")
    assert settings.kept() == {"sass", "passes"}
    monkeypatch.setenv("CUTE_DSL_KEEP", "all")
    assert settings.kept() == set(settings.KEEPABLE)
    monkeypatch.setenv("CUTE_DSL_KEEP", "all,python")
    assert settings.kept() == {*settings.KEEPABLE, "python"}


def test_variables_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_DUMP", "ptx")
    with pytest.raises(DSLRuntimeError, match="KILN_DUMP is not read any more(.|\n)*CUTE_DSL_KEEP takes"):
        settings.kept()
    assert not settings.GONE.keys() & settings.SETTINGS.keys()


def test_log_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("CUTE_DSL_LOG_TO_FILE", "1")
    monkeypatch.setenv("CUTE_DSL_LOG_TO_CONSOLE", "1")
    monkeypatch.setenv("CUTE_DSL_LOG_LEVEL", "20")
    logger().info("a message")
    logger().debug("a whisper")
    text = (tmp_path / f"kiln-{os.getpid()}.log").read_text()
    assert "a message" in text
    assert "a whisper" not in text
    assert "a message" in capsys.readouterr().err
    monkeypatch.setenv("CUTE_DSL_LOG_TO_FILE", "0")
    monkeypatch.setenv("CUTE_DSL_LOG_TO_CONSOLE", "0")
    logger().error("unheard")
    assert capsys.readouterr().err == ""
    assert not [h for h in logging.getLogger("kiln").handlers if isinstance(h, logging.FileHandler)]


def test_docs_are_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert settings.markdown_table() in page.read_text(), "run: python -m kiln.base_dsl.settings"
