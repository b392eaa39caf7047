"""Another installed `cutlass` is always reported by name, whichever of the two wins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kiln


@pytest.fixture
def rival(tmp_path: Path) -> Path:
    """A site folder in which a distribution `other-kernels` 1.2 has installed a package `cutlass`."""
    site = tmp_path / "rival-site"
    (site / "cutlass").mkdir(parents=True)
    (site / "cutlass" / "__init__.py").write_text("who = 'the rival'\n")
    info = site / "other_kernels-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-kernels\nVersion: 1.2\n")
    (info / "RECORD").write_text("cutlass/__init__.py,,\nother_kernels-1.2.dist-info/METADATA,,\n")
    return site


SHOW_RIVALS = "from kiln import _alias\nfor r in _alias.rivals(): print(r.path, r.distributions, r.wins)"


def test_none_by_default(child):
    done = child("-W", "error", "-c", "import cutlass\n" + SHOW_RIVALS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_shadowed_rival_is_named_by_a_warning(child, rival):
    program = f"import sys; sys.path.append({str(rival)!r})\nimport cutlass\nprint(cutlass.__name__)\n{SHOW_RIVALS}"
    done = child("-c", program)
    assert done.stdout.splitlines() == ["cutlass", f"{rival / 'cutlass'} ('other-kernels 1.2',) False"]
    assert "RuntimeWarning" in done.stderr
    assert "other-kernels 1.2" in done.stderr
    assert "<string>:2" in done.stderr  # the warning points at the user's import


def test_another_copy_of_kiln_is_no_rival(child, tmp_path):
    root = Path(kiln.__file__ or "").parent.parent
    (tmp_path / "copy").mkdir()
    for package in ("kiln", "cutlass"):
        shutil.copytree(root / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ((tmp_path / "copy",), ()):
        done = child(
            "-W", "error", "-c", f"import sys; sys.path.append({str(tmp_path / 'copy')!r}); import cutlass", path=path
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_rival_that_wins(child, rival):
    done = child("-c", SHOW_RIVALS + "\nimport cutlass; print(cutlass.who)", path=(rival,))
    assert done.stdout.splitlines() == [f"{rival / 'cutlass'} ('other-kernels 1.2',) True", "the rival"]


def test_a_rival_nobody_owns(child, tmp_path):
    (tmp_path / "cutlass.py").write_text("")
    done = child("-c", "from kiln import _alias; print(*_alias.rivals())")
    assert done.stdout.strip() == f"{tmp_path / 'cutlass.py'} (no installed distribution owns it)"


def test_a_rival_behind_an_import_hook(child, rival):
    program = f"""
import sys
from importlib.machinery import PathFinder
class Editable:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(rival)!r}]) if name == "cutlass" else None
sys.meta_path.append(Editable)
"""
    done = child("-c", program + SHOW_RIVALS)
    # Only the module search path tells which distributions are installed, so this one stays anonymous.
    assert done.stdout.splitlines() == [f"{rival / 'cutlass'} () False"]


def test_a_rival_that_wrote_into_our_folder(child, tmp_path):
    """Two wheels with a `cutlass` folder in one environment: whoever came last has the say."""
    import cutlass  # noqa: F401
    import kiln

    root = Path(kiln.__file__ or "").parent
    site = tmp_path / "site"
    (site / "cutlass" / "cute").mkdir(parents=True)
    (site / "kiln").mkdir()
    for file in ("__init__.py", "_alias.py"):
        (site / "kiln" / file).write_text((root / file).read_text() if file == "_alias.py" else "__version__ = '0'\n")
    (site / "cutlass" / "cute" / "__init__.py").write_text("")
    info = site / "other_kernels-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-kernels\nVersion: 1.2\n")
    (info / "RECORD").write_text("cutlass/__init__.py,,\ncutlass/cute/__init__.py,,\n")

    alias = (root.parent / "cutlass" / "__init__.py").read_text()
    for text, path, wins in (
        (alias, site / "cutlass" / "cute", False),
        ("who = 'the rival'\n", site / "cutlass", True),
    ):
        (site / "cutlass" / "__init__.py").write_text(text)
        done = child("-c", SHOW_RIVALS, PYTHONPATH=str(site))
        assert done.stdout.splitlines() == [f"{path} ('other-kernels 1.2',) {wins}"], done.stderr
