"""`kiln new`: what it writes works as it is."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.workbench.main import main
from kiln.workbench.scaffold import new

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


@pytest.mark.parametrize("kind", new.KINDS)
def test_templates_become_the_kernel_that_was_named(kind: str) -> None:
    files = new.contents("tall_sum", kind)
    for name, text in files.items():
        if name.endswith(".py"):
            ast.parse(text)
        assert "my_kernel" not in text, name
        assert "MyKernel" not in text, name
    assert "def tall_sum(" in files["kernel.py"]
    assert all(
        len([line for line in text.splitlines() if line]) == 3
        for name, text in files.items()
        if name.startswith("scripts/")
    )


def test_editors_find_the_lines_of_messages() -> None:
    tasks = json.loads(new.contents("tall_sum", "empty")[".vscode/tasks.json"])["tasks"]
    assert {task["command"] for task in tasks} == {"kiln"} and ["run", "--sanitize", "${file}"] in [
        task["args"] for task in tasks
    ]
    pattern = tasks[0]["problemMatcher"]["pattern"]
    fields = [pattern[name] for name in ("file", "line", "severity", "message")]
    for line, expected in {
        "kiln.cute.layout.leaf.LayoutError: /a b/k.py:9: error: it has 3 parts": (
            "/a b/k.py",
            "9",
            "error",
            "it has 3 parts",
        ),
        "k.py:10: race in kernel k: thread 1 writes": ("k.py", "10", None, "race in kernel k: thread 1 writes"),
        "SanitizerError: k.py:11: race in kernel k": ("k.py", "11", None, "race in kernel k"),
        "/x/k.py:11: DSLWarning: memory in kernel k": ("/x/k.py", "11", None, "DSLWarning: memory in kernel k"),
        "k.py:12: note: written here by thread 0": ("k.py", "12", "note", "written here by thread 0"),
    }.items():
        match = re.match(pattern["regexp"], line)
        assert match is not None and match.group(*fields) == expected
    for line in ('  File "/x/k.py", line 3, in k', "    x[i] = y[i]", "help: write x[i]"):
        assert re.match(pattern["regexp"], line) is None


def test_the_workflow_tests_without_a_gpu() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(new.contents("tall_sum", "empty", "numpy")[".github/workflows/kernels.yml"])
    (steps,) = (job["steps"] for job in workflow["jobs"].values())
    assert steps[-1] == {"run": "pytest --kiln-sanitize", "env": {"KILN_TARGET": "cpu"}}
    assert "numpy" in steps[-2]["run"]


@pytest.mark.parametrize("kind", new.KINDS)
def test_templates_for_numpy_have_the_same_kernels_and_no_torch(kind: str) -> None:
    torch, numpy = (new.contents("tall_sum", kind, arrays)["kernel.py"] for arrays in ("torch", "numpy"))
    compile(numpy, "kernel.py", "exec")
    assert "torch" not in numpy and "cutlass" not in torch and "from kiln import cute" in torch
    kernels = [ast.unparse(next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == "tall_sum"))
               for text in (torch, numpy)]  # fmt: skip
    assert kernels[0] == kernels[1]
    assert "\nNext: " in torch and "\nNext: " in numpy


def test_without_torch_the_kernel_is_for_numpy(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(new.verify, "main", lambda argv: asked.append(argv) or 0)
    monkeypatch.setattr(new.packages, "is_here", lambda name: name != "torch")
    assert main(["new", "mine"]) == 0
    assert "import numpy as np" in (tmp_path / "mine" / "kernel.py").read_text() and "--target=cpu" in asked[0]
    said = capsys.readouterr().out
    assert "kiln bench kernel.py --target=cpu" in said and "On a GPU it needs PyTorch" in said
    assert main(["new", "other", "--arrays", "torch"]) == 3
    assert "--arrays numpy" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["3rd", "a-b", "class", "", "a.b"])
def test_bad_names(name: str, capsys) -> None:
    assert main(["new", name]) == 2
    assert "is not a valid name of a kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    "package", ["/tmp/escaped", "../up", "..", ".up", "a..b", "a;b", "a/b", "a.class", "", " a", "a\n"]
)
def test_packages_are_names_in_the_current_folder(package: str, tmp_path: Path, monkeypatch, capsys) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    package = package.replace("/tmp", str(tmp_path))
    assert main(["new", "mine", "--package", package]) == 2
    assert "is not a valid name of a package" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]


@pytest.mark.parametrize("name", ["_", "_1", "none", "true", "été"])
def test_every_name_of_python_gives_python(name: str) -> None:
    for kind in new.KINDS:
        for file, text in new.contents(name, kind).items():
            if file.endswith(".py"):
                compile(text, file, "exec")


def test_links_are_not_followed(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "kept.py").write_text("kept")
    (tmp_path / "mine" / "test_kernel.py").symlink_to(tmp_path / "kept.py")
    assert main(["new", "mine", "--force"]) == 2
    assert "mine/test_kernel.py is a link" in capsys.readouterr().err
    assert (tmp_path / "kept.py").read_text() == "kept"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["test_kernel.py"]


def test_files_that_are_there_are_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new.verify, "main", lambda argv: 0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kernel.py").write_text("mine")
    assert main(["new", "mine"]) == 2
    assert "mine/kernel.py already exists" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["kernel.py"]
    monkeypatch.setattr(new.packages, "is_here", lambda name: False)
    assert main(["new", "mine", "--force"]) == 3
    assert "pip install torch" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new.verify, "main", lambda argv: 0)
    monkeypatch.setattr(new.packages, "is_here", lambda name: True)
    assert main(["new", "mine", "--force"]) == 0
    assert "kiln verify kernel.py" in capsys.readouterr().out
    assert main(["new", "other", "--package", "some.kernels"]) == 0
    assert (tmp_path / "some" / "kernels" / "other" / "__init__.py").exists()
    assert (tmp_path / "some" / "__init__.py").exists()


# One process for all of it: importing torch is most of the time.
PROGRAM = """
import sys
from pathlib import Path
import pytest
from kiln.workbench import main
from kiln.workbench.core import runners
from kiln.workbench.scaffold import new
from kiln.workbench.verify import cli as verify
verify.make_runner = lambda args: runners.Inline()
verify._shared = runners.Inline
KINDS = ["--kinds=odd,strided,repeated"] if len(sys.argv) == 2 else []
for kind in sys.argv[1:]:
    assert main.main(["new", kind + "_np", "--kind", kind, "--arrays", "numpy"]) == 0, kind
    assert main.main(["new", kind + "_it", "--kind", kind]) == 0, kind
    path = f"{kind}_it/kernel.py"
    assert main.main(["verify", path, "--max-elements=2048", "--target=cpu", *KINDS]) == 0, kind
    options = ["-q", "-p", "no:cacheprovider", "-k", "normal", f"{kind}_it/test_kernel.py"]
    assert pytest.main(options) == 0, kind
    words = ["bench", path, "--target=cpu", *(f"--{name}=64" for name in ("m", "n", "k", "heads", "queries", "keys", "d")
             if f"{name}=" in Path(path).read_text().split("def get_inputs")[-1].split(":")[0])]
    if not KINDS:  # it starts workers
        assert main.main(words) == 0, kind
"""


@pytest.mark.quick(0)
@pytest.mark.torch
def test_c14_new_kernels_work(child, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = child("-c", PROGRAM, *(new.KINDS if LONG else ["reduction"]), KILN_TARGET="cpu", KILN_CPU_OPT="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It works. Now:" in done.stdout
    ruff = Path(sys.executable).with_name("ruff")
    if ruff.exists():
        subprocess.run([ruff, "check", "--isolated", "--quiet", "."], cwd=tmp_path, check=True)
