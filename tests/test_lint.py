"""`tools/lint`: each check reports the faults that are planted into a small tree, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import counted
import data_pages
import english_names
import folders_of_tests
import kernel_imports
import operation_names
import page_names
import peer_tables
import plain_english
import private_words
import pytest
import room_map
import statements
import type_annotations
import workbench_imports
from source_tree import Tree

Planted = Callable[..., Tree]

ROOMS = "```rooms\nworkbench: hardware\nhardware:\nground: mlir\n```\n"


@pytest.fixture
def plant(tmp_path: Path) -> Planted:
    """Return a function that writes files, given by path, and returns their tree."""

    def planted(files: dict[str, str]) -> Tree:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Tree(tmp_path)

    return planted


def reported(check: Callable[[Tree], object], tree: Tree) -> list[str]:
    return sorted(map(str, check(tree)))  # type: ignore[call-overload]


def test_private_words(plant: Planted) -> None:
    text = '"""Rows of the copy engine."""\n\nMOST_SUMS = 1  # for warp groups\ncheck_sum = "product"\n'
    tree = plant({"src/kiln/kernels/latents/kernel.py": text, "src/kiln/clean.py": "count = 1\n"})
    (file, _) = sorted(tree.files("src"), key=lambda each: "clean" in each.name)
    assert {(line, word) for line, word, _ in private_words.private_words(tree, file)} == {
        (0, "latents"),
        (3, "sums"),
        (1, "copy engine"),
        (3, "warp groups"),
        (4, "product"),
    }
    assert len(reported(private_words.check, tree)) == 5


def test_names_of_operations(plant: Planted) -> None:
    text = """
_MOVED = {"cute.ptr_add", "cute.view"}
own = name.startswith(f"cute_nvgpu.{unit}") or name in "cute.load cute.store".split()
type_ = "!cute.ptr"
hint = "cute.copy(atom, source, target)"
module = "cute.nvgpu.cpasync"
"""
    tree = plant({"src/kiln/targets/a.py": text, "src/kiln/dialects/b.py": text})
    assert [line.split()[0] for line in reported(operation_names.check, tree)] == [
        f"src/kiln/targets/a.py:{number}:" for number in (2, 2, 3, 3, 4)
    ]
    allowed = {operation_names.RULE: {"src/kiln/targets/a.py": 5}}
    assert not reported(operation_names.check, plant({counted.COUNTS: json.dumps(allowed)}))


def test_an_allowed_word_that_is_gone(plant: Planted) -> None:
    one = private_words.ALLOWED[0]
    (line,) = reported(private_words.check, plant({one.file: "x = 1\n"}))[:1]
    assert f"no longer has '{one.word}'" in line
    assert all(each.reason for each in private_words.ALLOWED)
    assert len(private_words.ALLOWED) <= 60
    assert not {each.word for each in private_words.ALLOWED} & {"given", "told", "latents", "doors", "meanwhile"}


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("a, b = f(), g()", True),
        ("a, b = f(a), g(b)", True),
        ("(m, n), k = shape, depth", True),
        ("self.a, self.b = 1, 2", True),
        ("a, b = x.width, *dims", True),
        ("a, b = b, a", False),
        ("a, b = b, a + b", False),
        ("a[i], a[j] = a[j], a[i]", False),
        ("self.a, self.b = self.b, 0", False),
        ("m, n, _ = shape", False),
        ("M, N = TILE = (1, 2)", False),
        ("pair = f(), g()", False),
    ],
)
def test_several_assignments_in_one(plant: Planted, text: str, several: bool) -> None:
    problems = reported(statements.check, plant({"src/kiln/x.py": f"{text}\n"}))
    assert problems == ["src/kiln/x.py:1: assigns unrelated things in one tuple: write a statement for each"] * several


def test_exceptions_from_the_formatter(plant: Planted) -> None:
    tree = plant({"docs/a.md": "x = 1  # fmt: skip\n", "tools/b.py": "# fmt:off\n", "tests/c.py": "# fmt: off\n"})
    assert [line.split()[0] for line in reported(statements.check, tree)] == ["docs/a.md:1:", "tools/b.py:1:"]


def test_names_that_say_nothing(plant: Planted) -> None:
    text = "found = 1\ndef f(made_shape): pass\nclass A:\n    def g(self): self.known = foundation = 1\n"
    lines = reported(english_names.check, plant({"src/kiln/a.py": text}))
    assert [line.split()[0] for line in lines] == [f"src/kiln/a.py:{number}:" for number in (1, 2, 4)]
    assert "(3 in this file, 0 are allowed)" in lines[0]


def test_prose_that_says_products(plant: Planted) -> None:
    text = '"""Wait for products."""\nx = 1  # sums of squares, and partial sums\ny = "sums"\nproduct = 1\n'
    lines = reported(english_names.check, plant({"src/kiln/a.py": text, "src/kiln/kernels/b.py": text}))
    assert [line.split()[:2] for line in lines] == [
        ["src/kiln/a.py:1:", "'products':"],
        ["src/kiln/a.py:3:", "'sums':"],
    ]


def test_annotations_made_by_a_machine(plant: Planted) -> None:
    text = (
        "class A:\n"
        "    def __init__(self):\n        self.x = None\n        self.y: int | None = None\n"
        "    def f(self, a: tuple[int, int] | tuple[int, int], b: Any | bool, c: int | None):\n"
        "        self.x: int = 1\n        self.y = 2\n        self.z: int = 3\n"
    )
    tree = plant({"src/kiln/hardware/a.py": text, "tools/lint/counts.json": '{"Any": {"hardware": 1}}'})
    assert reported(type_annotations.check, tree) == [
        f"src/kiln/hardware/a.py:{line} (3 in this file, 0 are allowed)"
        for line in (
            "5: Any | bool is Any: say the type, or Any alone",
            "5: tuple[int, int] | tuple[int, int] has a member twice",
            "6: self.x is annotated here: annotate its first assignment",
        )
    ]


def test_counts_only_shrink(plant: Planted) -> None:
    before = {english_names.NAMES: {"src/kiln/a.py": 3, "src/kiln/gone.py": 1}, type_annotations.ANY: {"hardware": 1}}
    files = {"src/kiln/a.py": "found = made = 1\n", "src/kiln/hardware/b.py": "x: Any = 1\ny: Any = 1\nfound = 2\n"}
    tree = plant({**files, counted.COUNTS: json.dumps(before)})
    assert reported(type_annotations.check, tree) == [
        "hardware: Any: 2, and 1 are allowed; say the type, or a protocol with what is used"
    ]
    assert [line.split()[0] for line in reported(english_names.check, tree)] == ["src/kiln/hardware/b.py:3:"]
    assert counted.lowered(tree, {**english_names.counts(tree), **type_annotations.counts(tree)}) == 2
    assert counted.allowed(tree) == {english_names.NAMES: {"src/kiln/a.py": 2}, type_annotations.ANY: {"hardware": 1}}


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from ..llvm import binding", "kiln.llvm"),
        ("def f():\n    from .. import llvm", "kiln.llvm"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..mlir import ir", "kiln.mlir"),
        ("import kiln.mlir", "kiln.mlir"),
        ("import importlib\nimportlib.import_module('kiln.mlir')", "kiln.mlir"),
        ("import importlib\nimportlib.import_module(f'{__name__}.bindings')", "kiln.hardware.example"),
        ("__getattr__ = lazy.names(__name__, {'ir': '..mlir'})", "kiln.mlir"),
        ("ir = lazy.Module('kiln.mlir', 'ir')", "kiln.mlir"),
        ("import numpy", None),
    ],
)
def test_every_kind_of_import(plant: Planted, text: str, module: str | None) -> None:
    names = ("__init__", "llvm", "mlir", "hardware/__init__")
    tree = plant({**{f"src/kiln/{name}.py": "" for name in names}, "src/kiln/hardware/example.py": text})
    imports = room_map.imports(tree, "kiln.hardware.example", room_map.modules(tree))
    assert {name for name, _ in imports} == ({module} if module else set())


def test_imports_against_the_map(plant: Planted) -> None:
    tree = plant(
        {
            "docs/architecture.md": ROOMS,
            "src/kiln/mlir.py": "",
            "src/kiln/hardware/__init__.py": "from ..workbench import cli\n",
            "src/kiln/workbench/cli.py": "from ..hardware import driver\n",
            "src/kiln/extra.py": "from . import mlir\n",
        }
    )
    assert reported(room_map.check, tree) == [
        "docs/architecture.md: extra is not in the map",
        "docs/architecture.md: hardware imports workbench, which the map does not have: src/kiln/hardware/__init__.py:1",
    ]


def test_a_map_with_a_cycle(plant: Planted) -> None:
    page = "```rooms\nhardware: workbench\nworkbench: hardware\nground: mlir llvm\n```\n"
    files = {"mlir.py": "from . import llvm as _", "llvm.py": "from . import mlir as _"}
    rooms = {"hardware/a.py": "", "workbench/b.py": ""}
    tree = plant(
        {"docs/architecture.md": page, **{f"src/kiln/{name}": text for name, text in {**files, **rooms}.items()}}
    )
    first, second = reported(room_map.check, tree)
    assert first.endswith("in a circle: [('llvm', 'mlir'), ('mlir', 'llvm')]")
    assert second.endswith("workbench imports hardware, which does not stand below it in the map")


def test_imports_of_kernels(plant: Planted) -> None:
    folder = "src/kiln/kernels"
    tree = plant(
        {
            f"{folder}/impl/gemm/a.py": "from kiln import cute\nfrom kiln.targets import nvidia\nfrom ..topk import x\n",
            f"{folder}/impl/topk/b.py": "from ..rowwise import y\n",
            f"{folder}/impl/rowwise/c.py": "import kiln.cute\n",
            f"{folder}/parts/d.py": "from ..impl.gemm import a\n",
            f"{folder}/parts/e.py": "pipeline.NamedBarrier(1, 2)\n",
            f"{folder}/parts/warp_roles.py": "pipeline.NamedBarrier(1, 2)\n",
        }
    )
    assert reported(kernel_imports.check, tree) == [
        f"{folder}/impl/gemm/a.py:2: imports kiln.targets, which is not public: a kernel uses public names only",
        f"{folder}/impl/gemm/a.py:3: imports the family topk, which does not stand below gemm",
        f"{folder}/parts/d.py:1: imports kiln.kernels.impl.gemm: parts stands below the families",
        f"{folder}/parts/e.py:1: calls NamedBarrier: only WarpRoles in parts/warp_roles.py does, and checks it",
    ]


def test_imports_of_the_workbench(plant: Planted) -> None:
    folder = "src/kiln/workbench"
    tree = plant(
        {
            f"{folder}/a.py": "def f():\n    from . import b\n",
            f"{folder}/b.py": "import importlib\nimportlib.import_module('kiln.workbench.a')\n",
            f"{folder}/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a\n",
        }
    )
    lines = [line for line in reported(workbench_imports.check, tree) if not line.startswith("tools/lint/")]
    assert lines == [
        f"{folder}/a.py:2: imports kiln.workbench.b inside a function: import it above",
        f"{folder}: these import each other in a circle: kiln.workbench.a, kiln.workbench.b",
    ]
    unused = "tools/lint/workbench_imports.py: yaml is imported inside no function: take it out"
    assert unused in reported(workbench_imports.check, tree)


def test_folders_of_tests(plant: Planted) -> None:
    tree = plant(
        {
            "src/kiln/hardware/__init__.py": "",
            "src/kiln/targets/cpu/__init__.py": "",
            "tests/targets/cpu/test_one.py": "from test_two import x\nimport sys\nsys.path.insert(0, 'x')\n",
            "tests/nowhere/test_two.py": "import os.path\n",
            "tests/helpers/test_one.py": "",
        }
    )
    assert reported(folders_of_tests.check, tree) == [
        "src/kiln/hardware: the room has no folder of tests",
        "tests/helpers/test_one.py: another test has this name",
        "tests/nowhere: there is no such folder in src/kiln",
        "tests/targets/cpu/test_one.py: another test has this name",
        "tests/targets/cpu/test_one.py:1: uses test_two: what tests share is in tests/helpers",
        "tests/targets/cpu/test_one.py:3: uses sys.path: what tests share is in tests/helpers",
    ]


def test_long_sentences(plant: Planted) -> None:
    text = "---\ntitle: a b\n---\n# Head line\n\nOne two. Three\nfour: five `x = 1` six!\n\n- a b\n- c d\n\n| x y |\n\n```python\na b\n```\n"
    assert plain_english.sentences(text) == ["One two.", "Three four:", "five code six!", "a b", "c d"]
    tree = plant({"docs/a.md": "word " * 36 + ".\n", "docs/b.md": "One two three.\n", "docs/data/c.md": "word " * 40})
    mean, long = reported(plain_english.check, tree)
    assert mean == "docs/a.md: 37.0 words a sentence: write fewer than 18 on average"
    assert long.startswith("docs/a.md: a sentence of 37 words, 35 are the most")


def test_names_of_pages(plant: Planted) -> None:
    links = "[a](there.md), [b](gone.md#part), `python tests/gone.py -x`, `hardware/gone.py`, `f32/f64`, `kiln/mlir.py`"
    tree = plant(
        {
            "docs/page.md": links,
            "docs/there.md": "`python tools/here.py --fast --gone x`, `nothing.of_this`",
            "docs/project/own.md": "`known_name`, `unknown_name`, `ruff`",
            "src/kiln/mlir.py": "known_name = 1\n",
            "tools/here.py": "add('--fast')\n",
        }
    )
    assert reported(page_names.check, tree) == [
        "docs/page.md: has a command that does not exist: tests/gone.py",
        "docs/page.md: names gone.md, which does not exist",
        "docs/page.md: names hardware/gone.py, which does not exist",
        "docs/page.md: names tests/gone.py, which does not exist",
        "docs/project/own.md: names `unknown_name`, which is not in the sources",
        "docs/there.md: has a command that does not exist: tools/here.py --gone",
    ]


def test_fields_of_configs(plant: Planted) -> None:
    """The real library is asked, for a page that has too few configs and a wrong one."""
    problems = reported(page_names.check, plant({"docs/kernels.md": "`Sm80GemmConfig(stages)` and `kernels.gone`\n"}))
    assert [problem.partition(": ")[2].split()[0] for problem in problems] == ["has", "names", "says"]


def test_lines_of_code(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        'import x\n\n\n@x\ndef f():\n    """A.\n\n    B.\n    """\n    # c\n\n    return (\n        1\n    )\n'
    )
    assert peer_tables.lines_of_code(path, "f") == 5


def copied(plant: Planted, changed: dict[str, tuple[str, str]]) -> Tree:
    """Return a tree of the peers' pages, and of a data page with its program, in which texts are replaced."""
    root = Path(__file__).resolve().parents[1]
    names = (
        *(peer_tables.PAGE, *peer_tables.SHORT, "examples/hopper/step_6_persistent.py"),
        *("src/kiln/workbench/scaffold/templates/gemm.py", "benchmarks/results.py", "benchmarks/gallery.py"),
        "docs/data/gallery.md",
    )
    texts = {name: (root / name).read_text() for name in names}
    for name, (before, after) in changed.items():
        assert before in texts[name]
        texts[name] = texts[name].replace(before, after, 1)
    return plant(texts)


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        ("README.md", "| by hand |", "| by foot |", "'by foot'; docs/peers.md says"),
        ("README.md", "has fourteen rows", "has rows", 'does not say that the comparison "has fourteen rows"'),
        ("docs/peers.md", "| Triton | **", "| Tritium | **", "does not have all projects in their order"),
        ("examples/hopper/step_6_persistent.py", "    thread", "    x = 1\n    thread", "Kiln's GEMMs have"),
    ],
)
def test_tables_of_peers(plant: Planted, name: str, before: str, after: str, problem: str) -> None:
    assert reported(peer_tables.check, copied(plant, {})) == []
    problems = reported(peer_tables.check, copied(plant, {name: (before, after)}))
    assert problem in "".join(problems)


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        ("docs/data/gallery.md", "\n## ", "\n\n## ", "is not as benchmarks/gallery.py writes it"),
        ("docs/data/gallery.md", "\n\n20", "\n\nIn 20", "does not begin with day and machine"),
        ("benchmarks/gallery.py", "Memory-bound", "Other", "has the tables"),
        ("benchmarks/gallery.py", ".finish(", ".end(", "has the page docs/data/gallery.md, and no .finish("),
    ],
)
def test_pages_of_data(plant: Planted, name: str, before: str, after: str, problem: str) -> None:
    assert reported(data_pages.check, copied(plant, {})) == []
    assert problem in "".join(reported(data_pages.check, copied(plant, {name: (before, after)})))
