"""`kiln import`: packages of programs of our own in the form of public ones, of KernelBench problems and of GPU MODE's (C15)."""

from __future__ import annotations

import ast
import hashlib
import importlib
import textwrap
from pathlib import Path

import pytest

from kiln.workbench.scaffold import import_program

LICENCE = "# SPDX-License-Identifier: BSD-3-Clause\n"

KERNEL = """
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def double_kernel(x: cute.Tensor, y: cute.Tensor):
    i = cute.arch.block_idx()[0] * 64 + cute.arch.thread_idx()[0]
    if i < cute.size(x):
        y[i] = x[i] + x[i]

@cute.jit
def double(x: cute.Tensor, y: cute.Tensor):
    \"\"\"y = 2 x, element by element.\"\"\"
    double_kernel(x, y).launch(grid=cute.ceil_div(cute.size(x), 64), block=64)
"""

PROGRAM = (
    LICENCE
    + "import argparse\nimport torch\n"
    + KERNEL
    + """
def run(M, N, warmup_iterations=2, iterations=10):
    x = torch.randn(M * N, device="cuda")
    y = torch.empty_like(x)
    double(from_dlpack(x), from_dlpack(y))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--M", default=128, type=int)
    parser.add_argument("--mnk", default=(1, 2, 3))
    parser.add_argument("--dtype", default=cutlass.Float16)
    parser.add_argument("--iterations", default=10, type=int)
    parser.add_argument("--causal", action="store_true")
    raise SystemExit("the importer ran the program")
"""
)

KERNEL_BENCH = (
    "import torch\nimport torch.nn as nn\n"
    + KERNEL
    + """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = nn.Linear(features, features)

    def forward(self, x):
        return 2 * self.scale(x)

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = nn.Linear(features, features)

    def forward(self, x):
        x = self.scale(x)
        y = torch.empty_like(x)
        double(x.reshape(-1), y.reshape(-1))
        return y

def get_inputs():
    return [torch.randn(4, 24)]

def get_init_inputs():
    return [24]
"""
)

GPU_MODE = "import torch\n" + KERNEL + """
def custom_kernel(data):
    x, y = data
    double(x, y)
    return y

def ref_kernel(data):
    x, y = data
    return 2 * x

def generate_input(size: int, seed: int):
    gen = torch.Generator()
    gen.manual_seed(seed)
    x = torch.randn(size, generator=gen)
    return x, torch.empty_like(x)
"""  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def write(name, text):
    Path(name).write_text(text)
    return name


def test_c15_a_program_becomes_a_plan_with_holes(capsys):
    file = write("double_it.py", PROGRAM)
    assert import_program.main([file, "--as", "doubled"]) == 0
    said = capsys.readouterr().out
    assert "jit functions: double (line" in said and "SPDX-License-Identifier: BSD-3-Clause" in said
    copy = Path("doubled/original.py").read_bytes()
    assert copy == Path(file).read_bytes()
    text = Path("doubled/doubled.py").read_text()
    assert hashlib.sha256(copy).hexdigest() in text and "SPDX-License-Identifier: BSD-3-Clause" in text
    assert f"{text.count(import_program.HOLE)} holes" in said and text.count(import_program.HOLE) == 6
    plan = importlib.import_module("doubled.doubled").Doubled
    made = plan()
    assert made.problem == {
        "M": 128,
        "mnk": (1, 2, 3),
        "dtype": "Float16",
        "causal": False,
    }  # how often it is run is no problem
    assert plan.__doc__ == "double of double_it.py."
    with pytest.raises(NotImplementedError, match="in the line above"):
        made.prepare_inputs()
    assert import_program.main([file, "--as", "doubled"]) == 2  # exists
    assert import_program.main([file, "--as", "doubled", "--force"]) == 0


def test_c15_reference_and_baseline_fill_holes(capsys):
    file = write("double_it.py", PROGRAM)
    write("other.py", "def doubled_by_numpy(x, y):\n    return 2 * x\n\n\ndef again(x, y):\n    return x + x\n")
    words = ["--reference", "other.py:doubled_by_numpy", "--baseline", "other.py:again", "--as", "filled"]
    assert import_program.main([file, *words]) == 0
    plan = importlib.import_module("filled.filled").Filled
    assert plan().reference_fn(3, None) == 6 and plan.baselines["other"](4, None) == 8
    assert Path("filled/reference.py").read_text() == Path("other.py").read_text()
    assert import_program.main([file, "--as", "a", "--reference", "other.py"]) == 2  # which of the two?
    assert import_program.main([file, "--as", "a", "--reference", "run"]) == 0  # a function of the source
    assert import_program.main([file, "--as", "b", "--baseline", "other.py:nothing"]) == 2
    assert import_program.main([file, "--as", "c", "--entry", "treble"]) == 2
    assert "it has no 'treble'; it has: double_kernel, double, run" in capsys.readouterr().err


VERIFY = """
import sys
import kiln
from kiln.workbench import verify
from kiln.workbench.core import loading
from kiln.workbench.core.runners import Inline

for name in sys.argv[1:]:
    with kiln.target("cpu"):
        verdict = verify.verify(loading.load(f"{name}/kernel.py"), quick=True, runner=Inline(), record=False, quiet=True)
    assert verdict.ok and len(verdict.checks) >= 2, str(verdict)
"""


@pytest.mark.quick(0)
def test_c15_problems_of_others_verify_without_edits(child, capsys):
    """In another process: for one of them CUDA is served there."""
    pytest.importorskip("torch")
    for name, text in (("bench", KERNEL_BENCH), ("mode", GPU_MODE)):
        write("source.py", text)
        assert import_program.main(["source.py", "--as", name]) == 0
        assert "; 0 holes" in capsys.readouterr().out
    done = child("-c", VERIFY, "bench", "mode")
    assert done.returncode == 0, done.stdout + done.stderr


def test_c15_a_submission_and_its_reference_in_two_files():
    pytest.importorskip("yaml")
    head, _, rest = GPU_MODE.partition("def ref_kernel")
    write("task.py", "input_t = tuple\n")
    write("submission.py", head.replace("import torch", "import torch\nfrom task import input_t"))
    write("reference.py", "import torch\n\ndef ref_kernel" + rest)
    write("task.yml", "tests:\n  - {size: 100, seed: 7}\n  - {size: 8, seed: 1}\n")
    assert import_program.main(["submission.py", "--reference", "reference.py", "--as", "two"]) == 0
    text = Path("two/kernel.py").read_text()
    assert "problems = [{'size': 100, 'seed': 7}, {'size': 8, 'seed': 1}]" in text
    assert (
        "reference.ref_kernel(packed(inputs))" in text
        and "mutates = aliases = True" in text
        and import_program.HOLE not in text
    )
    assert Path("two/task.py").read_text() == Path("task.py").read_text()  # what it imports from beside it comes along
    assert importlib.import_module("two.kernel").get_inputs(8, 1)[0].shape == (8,)


def test_a_problem_that_nobody_has_solved_has_a_hole(capsys):
    write("relu.py", KERNEL_BENCH.partition("class ModelNew")[0] + "def get_inputs():\n    return []\n")
    assert import_program.main(["relu.py"]) == 0
    assert "the source has no ModelNew: this runs the reference itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import os\n\ndef f():\n    pass\n\nclass C:\n    pass\n", 1, "it defines: f, C\n  it imports: os"),
        ("", 1, "it defines: nothing"),
        ("def f(:\n", 2, "bad.py:1: SyntaxError"),
        ("x = '\0'\n", 2, "bad.py:1: "),
    ],
)  # fmt: skip
def test_c15_what_cannot_be_imported(text, status, said, capsys):
    assert import_program.main([write("bad.py", text)]) == status
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert not Path("bad").exists()


def test_names_and_missing_files(capsys):
    assert import_program.main(["nowhere.py"]) == 2
    assert import_program.main([write("double.py", PROGRAM), "--as", "class"]) == 2
    assert "identifier" in capsys.readouterr().err


def test_methods_and_siblings_are_seen():
    write("helpers.py", "")
    text = textwrap.dedent("""
        import helpers
        import cutlass.cute as cute

        class Gemm:
            @cute.jit
            def __call__(self, a, b, c: cute.Tensor):
                self.kernel(a, b, c).launch(grid=1, block=32)

            @cute.kernel
            def kernel(self, a, b, c):
                cute.nvgpu.warpgroup.fence()
    """)
    assert import_program.main([write("gemm.py", text), "--as", "g"]) == 0
    made = Path("g/g.py").read_text()
    assert Path("g/helpers.py").is_file()
    assert (
        'arch = "sm_90a"' in made
        and "sys.path.insert(0, str(Path(__file__).parent))  # for helpers" in made
        and "original.Gemm(...)" in made
    )


HOSTILE = [
    'b"+injected()+"', "b'+injected()+'", 'b"""+injected()+"""', "b\nimport injected", "b\\", 'b"', "b\rinjected()",
    "{injected()}", "é\udcff", "from . import injected",
]  # fmt: skip
"""Names of files that are code where they are pasted."""


def code_of(text):
    """Names and modules that code uses, texts left out."""
    tree = ast.parse(text)
    imported = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {alias.name for node in imported for alias in node.names}


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("program", [PROGRAM, KERNEL_BENCH, GPU_MODE], ids=["plan", "kernel_bench", "gpu_mode"])
def test_names_of_files_are_texts(name, program, capsys):
    write(f"{name}.py", program)
    write(f"{name}x.py", "def base(x):\n    return x\n")
    assert import_program.main([f"{name}.py", "--as", "made", "--baseline", f"{name}x.py"]) == 0
    texts = [file.read_text() for file in Path("made").iterdir()]
    assert not any("injected" in code_of(text) for text in texts)
    tree = ast.parse(next(text for text in texts if "baselines = " in text))
    (found,) = [node for node in ast.walk(tree) if ast.unparse(node).startswith("baselines = ")]
    assert ast.unparse(found) == f"baselines = {{{name + 'x'!r}: baseline.base}}"


def test_annotations_and_defaults_are_texts(capsys):
    text = PROGRAM.replace("double(x: cute.Tensor,", 'double(x: f"""a\nimport injected\n{cute}""",')
    assert import_program.main([write("program.py", text.replace("default=128", "default=1e999")), "--as", "made"]) == 2
    assert "the default of M is inf, which is not a Python constant" in capsys.readouterr().err
    assert not Path("made").exists()
    assert import_program.main([write("program.py", text), "--as", "made"]) == 0
    assert "import injected" in Path("made/made.py").read_text()
    assert "injected" not in code_of(Path("made/made.py").read_text())


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("[{size: 2020-01-01}]", "not a Python constant"),
        ("[{size: .nan}]", "not a Python constant"),
        ("[", "cannot be read"),
    ],
)
def test_problems_that_are_no_constants(tests, said, capsys):
    write("task.yml", f"tests: {tests}\n")
    assert import_program.main([write("submission.py", GPU_MODE), "--as", "made"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("made").exists()


def test_a_default_that_is_no_constant(capsys):
    text = GPU_MODE.replace("size: int", "size: int = SIZE")
    assert (
        import_program.main([write("submission.py", text.replace("seed: int", "seed: int = 1")), "--as", "made"]) == 2
    )
    assert "the default of size is SIZE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["original", "__init__", "__main__"])
def test_copies_are_not_written_over(name, capsys):
    assert import_program.main([write("program.py", PROGRAM), "--as", name]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert not Path(name).exists()


def test_links_in_a_package_are_not_followed(capsys):
    Path("made").mkdir()
    write("kept.py", "kept")
    Path("made/original.py").symlink_to(Path("kept.py").resolve())
    assert import_program.main([write("program.py", PROGRAM), "--as", "made", "--force"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert Path("kept.py").read_text() == "kept"
