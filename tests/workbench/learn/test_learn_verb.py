"""`kiln learn` lists lessons, writes one into a folder, checks its exercises, and gives hints."""

from __future__ import annotations

from kiln.workbench.learn import checking
from kiln.workbench.learn.lessons import lessons
from kiln.workbench.main import main


def test_the_list_has_every_lesson(capsys):
    assert main(["learn"]) == 0
    out = capsys.readouterr().out
    assert all(lesson.title in out and lesson.can in out for lesson in lessons())


def test_start_check_hint(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "start", "1"]) == 0
    folder = tmp_path / "learn-01"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    stem = "01-first-kernel"
    assert names == {f"{stem}.md", f"{stem}.ipynb", "exercise_1.py", "exercise_2.py", "pictures/01-index.light.svg"}

    assert main(["learn", "check", "1"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  exercise_1.py: clamp an array" in out
    assert "add_row of a matrix (8, 32): element (0, 0) (256 of 256 elements are wrong)" in out
    assert "expected" in out and "got" in out and "kiln learn hint 1 1" in out
    assert out.count("its TODO is yours") == 2

    (folder / "exercise_2.py").write_text(checking.solution(1, 2).replace("+ row[j]", "- row[j]"))
    assert main(["learn", "check", "1"]) == 1
    assert capsys.readouterr().out.count("its TODO is yours") == 1  # a wrong solution is no gap

    for number in (1, 2):
        (folder / f"exercise_{number}.py").write_text(checking.solution(1, number))
    assert main(["learn", "start", "1"]) == 0  # what is there stays
    assert "kept  learn-01/exercise_1.py" in capsys.readouterr().out
    monkeypatch.chdir(folder)  # also from inside
    assert main(["learn", "check", "1"]) == 0
    assert "You can now write, launch and guard a kernel" in capsys.readouterr().out

    assert main(["learn", "hint", "1", "2", "--solution"]) == 0
    out = capsys.readouterr().out
    assert "guard i and j" in out and "exercise 1" not in out and "out[i, j] = x[i, j] + row[j]" in out


def test_bad_use(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "start", "99"]) == 2
    assert "no lesson 99" in capsys.readouterr().err
    assert main(["learn", "check", "1"]) == 2
    assert "kiln learn start 1" in capsys.readouterr().err
    assert main(["learn", "hint", "1", "7"]) == 2
    (tmp_path / "file").touch()
    assert main(["learn", "start", "1", "file/learn"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_error_of_python_names_the_line(tmp_path):
    file = tmp_path / "exercise_1.py"
    file.write_text("def launch_for(n, threads):\n    return n / 0, 0\n")
    wrong = checking.run_check(checking.exercises(0)[0], file)
    assert wrong == "ZeroDivisionError: division by zero (exercise_1.py, line 2)"
