"""Kernels are written with public names only, and families do not import each other in circles."""

from __future__ import annotations

import ast
from pathlib import Path

import kiln

FOLDER = Path(kiln.__file__).parent / "kernels"
SHARED = ("dispatch", "parts")
"""Folders below the families: what chooses and launches kernels, and device code that several families use."""
PUBLIC = (
    "kiln",
    "kiln.cute",
    "kiln.cute.nvgpu",
    "kiln.utils",
    "kiln.utils.reductions",
    "kiln.utils.schedulers",
    "kiln.pipeline",
)
"""What families may import besides the library itself; `dispatch` brings arrays to them."""
ABOVE = {
    "mla": {"attention"},
    "cross_entropy": {"rowwise"},
    "gemm": {"elementwise", "reduction"},
    "rowwise": {"reduction"},
    "topk": {"rowwise"},
}
"""Families that a family uses."""


def imported(file: Path) -> set[str]:
    """The modules that a file imports, lazily too; standard modules are left out."""
    package = ("kiln", *file.relative_to(FOLDER.parent).parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            found.add(".".join((*base, *([node.module] if node.module else []))))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kiln"):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names if name.name.startswith("kiln"))
    return found


def families() -> dict[str, set[str]]:
    """What each family imports."""
    folders = [f for f in (FOLDER / "impl").iterdir() if f.is_dir() and f.name != "__pycache__"]
    return {f.name: set[str]().union(*map(imported, f.rglob("*.py"))) for f in folders}


def test_families_import_public_names():
    for family, names in families().items():
        private = {name for name in names if not name.startswith("kiln.kernels")} - set(PUBLIC)
        assert not private, f"{family} imports {sorted(private)}"


def test_families_do_not_import_each_other_in_circles():
    found = families()
    assert {"gemm", "rowwise"} <= set(found)
    for family, names in found.items():
        used = {name.split(".")[3] for name in names if name.count(".") >= 3 and name.startswith("kiln.kernels.impl.")}
        assert used & found.keys() - {family} <= ABOVE.get(family, set()), family


def test_shared_folders_import_no_family():
    for folder in SHARED:
        names = set[str]().union(*map(imported, (FOLDER / folder).rglob("*.py")))
        assert not {name for name in names if name.startswith("kiln.kernels.impl.")}, folder


def test_roles_set_registers_and_name_barriers():
    """A `setmaxnreg` that some warps of a warpgroup do not reach, or a barrier counted for others, is a kernel that
    hangs: `WarpRoles` checks both, so kernels have no calls of their own."""
    calls = {
        f"{file.relative_to(FOLDER)}: {node.func.attr}"
        for file in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("NamedBarrier", "setmaxregister_increase", "setmaxregister_decrease")
    }
    assert {call.partition(":")[0] for call in calls} == {"parts/warp_roles.py"}
