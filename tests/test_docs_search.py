"""The search of the site finds pages by their synonyms, after a build of changed pages alone, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).resolve().parents[1] / "docs" / "_ext"


def synonyms(folder: Path) -> set[str]:
    environment = os.environ | {"PYTHONPATH": str(EXTENSIONS)}
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", folder, folder / "built"]
    subprocess.run(build, env=environment, check=True)
    index = (folder / "built" / "searchindex.js").read_text()
    return {*json.loads(index[index.index("{") : index.rindex("}") + 1])["indexentries"]}


def test_synonyms_of_unchanged_pages_stay_in_the_index(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    (tmp_path / "conf.py").write_text('extensions = ["kiln_search"]\nexclude_patterns = ["built"]\n')
    (tmp_path / "index.rst").write_text("One\n===\n\n.. toctree::\n\n   other\n")
    (tmp_path / "other.rst").write_text(":also: coalescing, vectorized loads\n\nOther\n=====\n\nText.\n")
    assert synonyms(tmp_path) == {"coalescing", "vectorized loads"}
    (tmp_path / "index.rst").write_text("Two\n===\n\n.. toctree::\n\n   other\n")
    assert synonyms(tmp_path) == {"coalescing", "vectorized loads"}
    (tmp_path / "other.rst").write_text(":also: gather\n\nOther\n=====\n\nText.\n")
    assert synonyms(tmp_path) == {"gather"}
