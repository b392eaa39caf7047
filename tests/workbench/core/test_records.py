"""Records and the journal they are kept in."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln.workbench.core import records
from kiln.workbench.core.records import STATUSES, Journal, Record


def record(number: int, **more) -> Record:
    return Record("tune", f"key{number}", "case", {"n": number}, {"tile": 4}, "ok", us=[1.0, 1.5, 2.0], n=20, **more)


def test_a_record_is_one_line_and_comes_back() -> None:
    made = record(1, error={"message": "a\nb"}, flags=["noisy"], more={"x": [1, None]})
    assert "\n" not in made.to_json()
    assert Record.from_json(made.to_json()) == made


def test_fields_of_a_later_version_are_left_out() -> None:
    line = record(1).to_json()
    assert Record.from_json(line.replace('"v":1', '"v":2,"colour":"red"')) == record(1)


@pytest.mark.parametrize("line", ["", "{}", "[]", "3", '{"v":1}', '{"v":1,"kind":"tune"}', '{"v":1,', "\x00"])
def test_what_is_no_record(line: str) -> None:
    with pytest.raises(ValueError):
        Record.from_json(line)


def test_a_status_is_one_of_the_list() -> None:
    with pytest.raises(ValueError, match="no status 'fine'; there are: ok,"):
        Record("tune", "k", "c", {}, None, "fine")
    assert {"ok", "crash", "lost"} <= STATUSES.keys()


def test_the_last_record_of_a_key_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / ".kiln")
    assert journal.read() == ([], 0)
    for number, status in ((1, "crash"), (2, "ok"), (1, "ok")):
        made = record(number)
        made.status = status
        journal.append(made)
    assert [each.status for each in journal.read()[0]] == ["crash", "ok", "ok"]
    assert {key: each.status for key, each in journal.by_key().items()} == {"key1": "ok", "key2": "ok"}
    assert "*" in (tmp_path / ".kiln" / ".gitignore").read_text().splitlines()


def test_c7_cut_anywhere_in_the_last_line_only_it_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(record(1))
    before = journal.file.stat().st_size
    journal.append(record(2, error={"message": "a sign of two bytes: é"}))
    whole = journal.file.read_bytes()
    for end in range(before, len(whole)):
        journal.file.write_bytes(whole[:end])
        found, torn = journal.read()
        # All of the line but its end is a record, too.
        complete = end == len(whole) - 1
        assert [each.key for each in found] == ["key1", "key2"][: 1 + complete]
        assert torn == (end > before and not complete)
        if end in (before + 1, before + 40, len(whole) - 1):
            journal.append(record(3))
            found, torn = journal.read()
            assert [each.key for each in found] == ["key1", *["key2"] * complete, "key3"]
            assert torn == (not complete)


def _write(folder: Path, first: int) -> None:
    for number in range(first, first + 20):
        Journal(folder).append(record(number, more={"text": "x" * 5000}))


def test_c7_two_processes_write_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, first)) for first in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found, torn = Journal(tmp_path).read()
    assert torn == 0
    assert sorted(each.problem["n"] for each in found) == [*range(20), *range(100, 120)]


def test_where_a_journal_lies(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "project"
    for file, folder in [
        (there / "kernel.py", there),
        (tmp_path / "lib" / "site-packages" / "some" / "kernel.py", tmp_path),
        (Path(records.__file__), tmp_path),
        (tmp_path / "is_not_there" / "kernel.py", tmp_path),  # as one that cannot be written to
        (None, tmp_path),
    ]:
        if file is not None and "not_there" not in str(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        case = SimpleNamespace(file=str(file) if file else None)
        assert records.journal_of(case).folder == folder / ".kiln"
