"""What the tests of served CUDA share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kiln

SERVER = """
import os, signal, sys
import torch
from kiln.workbench import run

for folder in sys.stdin:
    process = os.fork()
    if process == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(600)
os.chdir(folder.rstrip())
for number, name in enumerate((os.devnull, "said", "complained")):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
run.execute(["program.py"])
"""


@pytest.fixture
def gpu_program(child, tmp_path: Path) -> Callable[..., str]:
    """Runs the text of a program written for a GPU with `kiln run --target cpu`; its output. Its failure is the test's."""

    def run(text: str, *options: str, **env: str) -> str:
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        done = child("-m", "kiln", "run", *(options or ("--target", "cpu")), "program.py", **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], int]]:
    """Runs `program.py` of a folder in a copy of a process that `kiln run --target cpu` began and that has imported torch, which
    takes longer than what programs do; how it ended."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "server.py").write_text(SERVER)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "PYTHON"))}
    clean["PYTHONPATH"] = str(Path(kiln.__file__ or "").parent.parent)
    command = [sys.executable, "-m", "kiln", "run", "--target", "cpu", "server.py"]
    with subprocess.Popen(
        command, cwd=folder, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def run(where: Path) -> int:
            print(where, file=questions, flush=True)
            return int(answers.readline())

        yield run
        questions.close()


@pytest.fixture
def torch_program(torch_server: Callable[[Path], int], tmp_path: Path) -> Callable[[str], str]:
    """Like `gpu_program`, for programs that begin with torch."""

    def run(text: str) -> str:
        (tmp_path / "program.py").write_text(textwrap.dedent(text))
        status = torch_server(tmp_path)
        said, complained = ((tmp_path / name).read_text() for name in ("said", "complained"))
        assert status == 0, said + complained
        return said

    return run
