"""Kernels are written with public names only, families do not import each other in circles, and roles of warps are in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from source_tree import Problem, Tree

FOLDER = "src/kiln/kernels"
SHARED = ("dispatch", "parts")
"""Folders below the families: what chooses and launches kernels, and device code that several families use."""
PUBLIC = (
    "kiln",
    "kiln.cute",
    "kiln.cute.nvgpu",
    "kiln.hardware",
    "kiln.utils",
    "kiln.utils.reductions",
    "kiln.utils.schedulers",
    "kiln.utils.tiles",
    "kiln.utils.tiles.online_softmax",
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
ROLES = "parts/warp_roles.py"
"""The only file that may set registers or name barriers: it checks that all warps of a warpgroup reach a `setmaxnreg`, and
that a barrier counts the warps that arrive. Elsewhere such a call is a kernel that hangs."""
OF_ROLES = ("NamedBarrier", "setmaxregister_increase", "setmaxregister_decrease")


def imported(tree: Tree, file: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of Kiln that a file imports, lazily too, each with a line."""
    package = ("kiln", *file.relative_to(tree.root / "src" / "kiln").parts[:-1])
    for node in tree.nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            yield ".".join((*base, *([node.module] if node.module else []))), node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kiln"):
            yield node.module or "", node.lineno
        elif isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names if each.name.startswith("kiln"))


def families(tree: Tree) -> list[str]:
    """Return the names of the families."""
    folder = tree.root / FOLDER / "impl"
    return sorted({file.relative_to(folder).parts[0] for file in tree.files(f"{FOLDER}/impl") if file.parent != folder})


def check(tree: Tree) -> Iterator[Problem]:
    """Yield imports of families that are not public, or of a family that does not stand below."""
    names = families(tree)
    for family in names:
        for file in tree.files(f"{FOLDER}/impl/{family}"):
            for name, line in imported(tree, file):
                parts = name.split(".")
                of = parts[3] if name.startswith("kiln.kernels.impl.") else ""
                if not name.startswith("kiln.kernels") and name not in PUBLIC:
                    yield tree.at(file, line, f"imports {name}, which is not public: a kernel uses public names only")
                if of in names and of != family and of not in ABOVE.get(family, set()):
                    yield tree.at(file, line, f"imports the family {of}, which does not stand below {family}")
    for file in tree.files(FOLDER):
        if tree.name(file) != f"{FOLDER}/{ROLES}":
            for node in tree.nodes(file):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in OF_ROLES:
                    name = getattr(node.func, "attr", "")
                    yield tree.at(file, node.lineno, f"calls {name}: only WarpRoles in {ROLES} does, and checks it")
    for folder in SHARED:
        for file in tree.files(f"{FOLDER}/{folder}"):
            for name, line in imported(tree, file):
                if name.startswith("kiln.kernels.impl."):
                    yield tree.at(file, line, f"imports {name}: {folder} stands below the families")
