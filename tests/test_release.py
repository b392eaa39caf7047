"""`tools/release.py` and the trial of the wheel: what they can be asked here, without an environment."""

from __future__ import annotations

import email
import importlib.util
import json
import re
import subprocess
import sys
import unittest.mock
import zipfile
from pathlib import Path
from types import ModuleType

from kiln.workbench.kb import cli as kb

ROOT = Path(__file__).resolve().parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.object(sys, "path", [str(ROOT / "tools"), *sys.path]):
        spec.loader.exec_module(module)
    return module


def test_interpreters_may_follow_the_root():
    args = load("release").arguments(["check", "--root", "debian", "python3.12", "python3.13"])
    assert (args.what, args.root, args.pythons) == ("check", "debian", ["python3.12", "python3.13"])
    assert load("release").arguments(["check"]).pythons == []


def test_the_trial_expects_pages_that_are_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    searches = [step for step in load("release_trial").steps(ROOT) if step.command[1:3] == ("kb", "search")]
    assert searches
    for step in searches:
        assert kb.main(list(step.command[2:])) == 0
        assert re.search(step.prints, capsys.readouterr().out), step.name


def test_materials_and_checksums(tmp_path):
    files = load("release_files")
    wheel = tmp_path / "kiln_dsl-1.0-py3-none-any.whl"
    needs = ["numpy<3,>=1.26", "Torch_mlir==20261001", 'torch>=2.6; extra == "torch"', "rich>=13; python_version < '4'"]
    head = "Metadata-Version: 2.4\nName: Kiln_DSL\nVersion: 1.0\nLicense-Expression: Apache-2.0\n"
    with zipfile.ZipFile(wheel, "w") as zipped:
        text = head + "".join(f"Requires-Dist: {each}\n" for each in needs)
        zipped.writestr("kiln_dsl-1.0.dist-info/METADATA", text + "\nabout\n")
    sdist = tmp_path / "kiln_dsl-1.0.tar.gz"
    sdist.write_bytes(b"sources")
    bill, sums = files.write(tmp_path, sdist, wheel)
    document = json.loads(bill.read_text())
    assert document["bomFormat"] == "CycloneDX" and document["metadata"]["component"]["purl"] == "pkg:pypi/kiln-dsl@1.0"
    assert {each["purl"]: each.get("version") for each in document["components"]} == {
        "pkg:pypi/numpy": None, "pkg:pypi/torch-mlir@20261001": "20261001", "pkg:pypi/rich": None,
    }  # fmt: skip
    assert files.wrong_sums(tmp_path) == []
    sdist.write_bytes(b"others")
    (tmp_path / "more.txt").write_text("")
    wheel.unlink()
    assert files.wrong_sums(tmp_path) == [
        f"{wheel.name} is missing", "kiln_dsl-1.0.tar.gz has another checksum", "more.txt has no checksum",
    ]  # fmt: skip


def test_a_release_needs_addresses():
    files = load("release_files")
    assert files.unfilled_urls(email.message_from_string("Name: kiln-dsl\n\n")) == [
        "pyproject.toml has no [project.urls]"
    ]
    project = (ROOT / "pyproject.toml").read_text()
    urls = re.findall(
        r'^(\w+) = "(https?://[^"]+)"', project.partition("[project.urls]")[2].partition("\n[")[0], re.MULTILINE
    )
    assert {"Repository", "Issues", "Documentation", "Changelog"} <= {name for name, _ in urls}
    head = "".join(f"Project-URL: {name}, {url}\n" for name, url in urls)
    refused = files.unfilled_urls(email.message_from_string(head + "\n"))
    assert len(refused) == sum(files.PLACEHOLDER in url for _, url in urls)
    filled = email.message_from_string("Project-URL: Repository, https://kiln.org/kiln\n\n")
    assert files.unfilled_urls(filled) == []


def test_the_notebook_for_a_browser_runs(monkeypatch):
    notebook = json.loads((ROOT / "packaging" / "first_kernel.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert "pip install" in cells[0] and all(cell["outputs"] == [] for cell in notebook["cells"] if "outputs" in cell)
    code = "\n\n".join(cells[1:])
    done = subprocess.run(
        [sys.executable, "-c", _RUN_CELLS, json.dumps(cells[1:])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "right: True" in done.stdout and "race" in done.stdout and "sync_threads" in code


_RUN_CELLS = """
import json, linecache, sys
names = {"__name__": "__main__"}
for number, text in enumerate(json.loads(sys.argv[1])):
    file = f"<cell {number}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
"""


def test_the_images_recipes_are_of_this_package():
    project = (ROOT / "pyproject.toml").read_text()
    pinned = re.search(r'"torch-mlir==(\w+)"', project)
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    assert pinned and pinned[1] in recipe and "kiln-dsl" in recipe
    assert "COPY dist/" in (ROOT / "packaging" / "Dockerfile").read_text()
