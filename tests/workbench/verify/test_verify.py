"""`kiln verify`: what is right passes, what is wrong is found, and the report says where and why."""

from __future__ import annotations

import json
import os
import types
from pathlib import Path

import pytest

from kiln import workbench as wb
from kiln.workbench.core.command_line import EXIT
from kiln.workbench.core.records import Journal
from kiln.workbench.core.runners import Inline
from kiln.workbench.main import main
from kiln.workbench.verify import cli as verb
from kiln.workbench.verify import jobs

GOOD = """
import numpy as np

def kernel_fn(x):
    out = np.empty_like(x)
    np.maximum(x, 0, out=out)
    return out

def reference_fn(x):
    return np.maximum(x, 0)

def get_inputs(m=6, n=20, dtype="float32"):
    return [np.random.randn(m, n).astype(dtype)]
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, *changes: tuple[str, str]) -> str:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "kernel.py").write_text(text)
        return str(tmp_path / "kernel.py")

    return write


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    monkeypatch.setenv("KILN_TARGET", "cpu")


def body(*lines: str) -> tuple[str, str]:
    """Another body for the kernel of `GOOD`."""
    return "    out = np.empty_like(x)\n    np.maximum(x, 0, out=out)\n    return out\n", "".join(
        f"    {line}\n" for line in lines
    )


def run(capsys, *words: str) -> tuple[int, str]:
    status = main(["verify", *words])
    return status, capsys.readouterr().out


def test_what_is_right_passes(write, capsys, tmp_path: Path) -> None:
    path = write(GOOD)
    status, out = run(capsys, path)
    assert status == 0, out
    for kind, said in {
        "normal": "3 seeds; error 0, allowed",
        "integers": "3 seeds; exact",
        "odd": "m+1, m-1, m=1, n+1, n-1, n=1",
        "strided": "transposed, rows apart",
        "shifted": "ok",
        "deterministic": "three runs under three schedules",
        "sanitizer": "no races",
    }.items():
        [line] = [line for line in out.splitlines() if line.startswith(f"  {kind} ")]
        assert said in line
        assert " ok " in line
    assert "streams" not in out
    case = wb.load(path)
    record = verb.verified(case, case.problem())
    assert record is not None
    assert record.status == "ok"
    assert record.more["checks"] == 26


FAULTS = {
    "off by one at the edge": (
        body("out = np.empty_like(x)", "out[:, :-1] = np.maximum(x, 0)[:, :-1]", "return out"),
        "normal",
        ["whole column 19, the last (of 20)", "all of them are NaN where a number is expected: never written", "first at [0, 19]"],
    ),
    "wrong only for odd sizes": (
        body("out = np.zeros_like(x)", "k = x.shape[1] // 2 * 2", "out[:, :k] = np.maximum(x, 0)[:, :k]", "return out"),
        "odd n-1",
        ["column 18, the last (of 19)", "--n=19", "they are 0"],
    ),
    "NaN swallowed": (body("return np.where(x > 0, x, np.float32(0))"), "special", ["should be NaN and are not"]),
    "ignores strides": (
        body("flat = np.lib.stride_tricks.as_strided(x, x.shape, (x.shape[1] * 4, 4))", "return np.maximum(flat, 0)"),
        "strided transposed",
        ["elements of output 0 (float32 6x20) are wrong"],
    ),
    "neighbours": (body("return np.maximum(np.roll(x, -1, axis=0), 0)"), "normal", ["expected at the next row: off by one"]),
    "twice": (body("return 2 * np.maximum(x, 0)"), "normal", ["they are 2 times what is expected"]),
    "another type": (body("return np.maximum(x, 0).astype('float64')"), "normal", ["has type float64, the reference's float32"]),
    "another shape": (body("return np.maximum(x, 0)[:1]"), "normal", ["has shape (1, 20), the reference's (6, 20)"]),
    "raises": (body("return x.no_such_thing"), "normal", ["kernel_fn raised AttributeError", "return x.no_such_thing"]),
    "outside": (
        body("out = np.empty_like(x)", "wide = np.lib.stride_tricks.as_strided(out, (out.size + 1,), (4,))",
             "wide[-1] = 3", "np.maximum(x, 0, out=out)", "return out"),
        "normal",
        ["wrote outside memory it was given"],
    ),
    "not the same twice": (body("return np.maximum(x, 0) * np.float32(1 + 1e-7 * np.random.randint(20))"), "deterministic", ["gave other bits"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_c2_what_is_wrong_is_found(fault: str, write, capsys) -> None:
    change, kind, said = FAULTS[fault]
    path = write(GOOD, change)
    if fault == "not the same twice":
        path = write(GOOD, change, ("import numpy as np\n", "import numpy as np\ntolerance = {'rtol': 1e-5}\n"))
    status, out = run(capsys, path)
    assert status == 1, out
    assert f"FAILED {kind}, seed" in out
    for text in said:
        assert text in out
    again = next(line for line in out.splitlines() if line.startswith("  again: kiln verify"))
    # The command finds the same.
    status, out = run(capsys, *again.split()[3:])
    assert status == 1, out
    [record, *_] = Journal(Path(path).parent / ".kiln").read()[0]
    assert record.again == again.removeprefix("  again: ")
    assert record.status in ("wrong", "error", "nondeterministic")


SUMS = """
import numpy as np
from ml_dtypes import bfloat16

def kernel_fn(x):
    total = np.zeros(len(x), bfloat16)
    for column in x.T:
        total = (total + column).astype(bfloat16)
    return total.astype("float32")

def reference_fn(x):
    return x.sum(1)

def get_inputs(m=4, n=600):
    return [np.random.rand(m, n).astype("float32")]
"""


def test_c2_sums_in_bf16(write, capsys) -> None:
    status, out = run(capsys, write(SUMS), "--kinds=normal")
    assert status == 1
    assert "error" in out
    status, out = run(capsys, write(SUMS), "--kinds=integers")
    assert status == 1
    assert "allowed: exact" in out


BARRIER = """
import numpy as np
import kiln
import kiln.cute as cute

@cute.kernel
def reverse(x: cute.Tensor, y: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    smem = cute.arch.alloc_smem(kiln.Float32, 64)
    s = cute.make_tensor(smem, cute.make_layout(64))
    s[tid] = x[tid]
    cute.arch.sync_threads()
    y[tid] = s[63 - tid]

@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    reverse(x, y).launch(grid=1, block=64)

def kernel_fn(x):
    y = np.empty_like(x)
    host(x, y)
    return y

def reference_fn(x):
    return x[::-1]

def get_inputs():
    return [np.random.rand(64).astype("float32")]
"""


def test_c2_a_missing_barrier_is_told_with_both_lines(write, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    status, out = run(capsys, write(BARRIER), "--kinds=sanitizer")
    assert status == 0, out
    status, out = run(capsys, write(BARRIER, ("    cute.arch.sync_threads()\n", "")), "--kinds=sanitizer")
    assert status == 1
    assert "race" in out
    assert "kernel.py:11" in out
    assert "kernel.py:12" in out


UNGUARDED = """
import numpy as np
import kiln.cute as cute

@cute.kernel
def double(x: cute.Tensor, y: cute.Tensor):
    i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
    y[i] = x[i] * 2.0

@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    double(x, y).launch(grid=(x.shape[0] + 31) // 32, block=32)

def kernel_fn(x):
    y = np.empty_like(x)
    host(x, y)
    return y

def reference_fn(x):
    return x * 2

def get_inputs(n=64):
    return [np.random.rand(n).astype("float32")]
"""


def test_the_sanitizer_runs_with_odd_extents(write, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KILN_CPU_OPT", "0")
    status, out = run(capsys, write(UNGUARDED), "--kinds=sanitizer")
    assert status == 1
    assert "n+1" in out
    assert "kernel.py:8" in out
    assert "--n=65" in out


def test_problems_are_made_smaller_without_a_gpu(write, capsys) -> None:
    path = write(GOOD)
    status, out = run(capsys, path, "--m=256", "--n=256", "--kinds=normal", "--max-elements=600")
    assert status == 0
    case = wb.load(path)
    record = verb.verified(case, case.problem({"m": 256, "n": 256}))
    assert record is None  # not all that counts
    assert run(capsys, path, "--m=256", "--n=256", "--quick", "--max-elements=600")[0] == 0
    record = verb.verified(case, case.problem({"m": 256, "n": 256}))
    assert record is not None
    assert record.more["checked"]["m"] == 16
    made = "dtype=float32 (made smaller from m=256 n=256 dtype=float32; --max-elements=65536 checks all of it)"
    assert f"m=16 n=32 {made}" in out.replace("\n", " ") or f"m=32 n=16 {made}" in out.replace("\n", " ")


@pytest.mark.parametrize(
    ("size", "smaller"), [(781, 397), (1823, 927), (1024, 512), (1000, 488), (65, 33), (64, 32), (3, 1), (2, 1)]
)
def test_a_smaller_extent_keeps_the_remainder(size: int, smaller: int) -> None:
    assert jobs._halved(size) == smaller < size


def test_what_a_kernel_refuses_is_no_failure(write, capsys) -> None:
    lines = ("if x.shape[1] % 4:", "    raise ValueError('n is no multiple of 4')", "return np.maximum(x, 0)")
    status, out = run(capsys, write(GOOD, body(*lines)), "--kinds=normal,odd")
    assert status == 0
    assert "n+1 refused: ValueError: n is no multiple of 4" in out
    # The problem itself must not be.
    assert run(capsys, write(GOOD, body(*lines)), "--n=21", "--kinds=normal")[0] == 1


def test_tolerances(write, capsys) -> None:
    path = write(GOOD, body("return np.maximum(x, 0) * np.float32(1.0005)"))
    assert run(capsys, path, "--kinds=normal")[0] == 1
    assert run(capsys, path, "--rtol=1e-3", "--atol=1e-3")[0] == 0
    status, out = run(capsys, path, "--rtol=1e-4", "--atol=0", "--kinds=normal")
    assert status == 1
    assert "--rtol=0.0001 --atol=0.0" in out


def test_json_and_bad_use(write, capsys) -> None:
    path = write(GOOD)
    status, out = run(capsys, path, "--quick", "--json=-")
    found = json.loads(out)["result"]
    assert (status, found["ok"], [check["kind"] for check in found["checks"]]) == (0, True, ["normal", "integers"])
    assert main(["verify", path, "--kinds=odds"]) == 2
    assert "there is no kind of check 'odds'" in capsys.readouterr().err
    assert main(["verify", path, "--k=3"]) == 2
    assert "--k is neither an option nor a field of the problems" in capsys.readouterr().err
    assert main(["verify", path, "--kind=normal"]) == 2
    assert "did you mean --kinds?" in capsys.readouterr().err
    assert main(["verify", write(GOOD, ("np.maximum(x, 0)\n\n", "np.maximum(x, y)\n\n"))]) == 2
    assert "kernel.py:10: reference_fn raised NameError" in capsys.readouterr().err
    assert (
        main(["verify", write(GOOD, ("import numpy as np\n", "import numpy as np\narch = 'sm_80'\n")), "--arch=sm_90a"])
        == 3
    )


def test_checks_for_pytest(write) -> None:
    case = wb.load(write(GOOD, body("return np.where(x > 0, x, np.float32(0))")))
    checks = {str(check): check for check in case.checks()}
    assert "special-6-20-float32" in checks
    checks["normal-6-20-float32"].run(Inline())
    with pytest.raises(AssertionError, match="should be NaN and are not"):
        checks["special-6-20-float32"].run(Inline())


def test_c4_bad_contracts_end_with_2_and_a_place(write, capsys) -> None:
    for (old, new), place, said in [
        (("def get_inputs", "def get_input"), 12, "did you mean that?"),
        (("def get_inputs", "def _inputs"), 1, "a contract defines 'get_inputs', and this one does not"),
        (
            ("return [np.random.randn(m, n).astype(dtype)]", "return [m, n]"),
            12,
            "returns arrays (torch, numpy), not [6, 20]",
        ),
        (("def kernel_fn(x):", "def kernel_fn(x:"), 4, "SyntaxError"),
        (("import numpy as np", "import numpy as np\nimport no_such_package"), 3, "No module named 'no_such_package'"),
        ((GOOD, ""), 1, "a contract defines 'kernel_fn', and this one does not"),
    ]:
        assert main(["verify", write(GOOD, (old, new)), "--quick"]) == 2
        shown = capsys.readouterr()
        assert f"kernel.py:{place}: " in shown.err
        assert said in shown.err
        assert "Traceback" not in shown.err + shown.out


def test_on_a_cluster(write, monkeypatch) -> None:
    asked = []
    monkeypatch.undo()
    monkeypatch.setattr(
        "kiln.workbench.core.ray_runner.Ray", lambda *words, **more: asked.append((words, more)) or Inline()
    )
    path = write(GOOD)
    assert main(["verify", path, "--quick", "--quiet", "--ray=auto", "--target=cpu"]) == 0
    assert asked[0][0] == ("auto",)
    assert asked[0][1]["project"] == Path(path).parent


OTHERS = """
import numpy as np

class Array:
    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
    def __array__(self, *_, **__):
        return self.values

def kernel_fn(x):
    return Array(x.values * np.float32(1 + 1e-7))

def reference_fn(x):
    return Array(x.values * np.float32(1))

def get_inputs(n=6):
    return [Array(np.random.rand(n).astype("float32"))]
"""


def test_arrays_of_other_libraries(write, capsys) -> None:
    status, out = run(capsys, write(OTHERS), "--kinds=normal,integers,strided")
    assert status == 0, out
    assert " ".join(out.split()).count("not tried") == 2
    assert "no input is a torch or numpy array of floats" in out


@pytest.mark.parametrize(("ends", "status"), [(0, EXIT.GOOD), (9, EXIT.FAILED)])
def test_compute_sanitizer_says_what_it_found(ends, status, tmp_path, monkeypatch, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\necho Invalid write of size 4; exit {ends}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(verb.command_line, "on_gpu", lambda: True)
    out = types.SimpleNamespace(print=print)
    assert verb._compute_sanitizer({"where": "nothing"}, 10.0, out) == status
    assert capsys.readouterr().out == ("Invalid write of size 4\n" if ends else "compute-sanitizer: no errors\n")


def test_problems_that_become_the_same_are_checked_once(write, capsys, tmp_path: Path) -> None:
    sizes = "\nproblems = [dict(m=1 << 10, n=64), dict(m=1 << 12, n=64), dict(m=4, n=4)]\n"
    path = write(GOOD + sizes)
    status, out = run(capsys, path, "--kinds=normal,integers", "--max-elements=256")
    assert status == 0, out
    assert out.count("(2 problems, made smaller)") == 1 and out.count("  normal ") == 2
    records = [record for record in Journal(tmp_path / ".kiln").read()[0] if "checks" in record.more]
    assert [record.problem["m"] for record in records] == [1 << 10, 1 << 12, 4]  # each is known to be right


def test_a_verdict_is_shown_in_notebooks_as_in_terminals(write) -> None:
    case = wb.load(write(GOOD, ("np.maximum(x, 0, out=out)", "np.maximum(x, 1, out=out)")))
    verdict = verb.verify(case, kinds=["normal"], seeds=1, runner=Inline())
    bundle = verdict._repr_mimebundle_()
    assert bundle["text/plain"] == str(verdict) == repr(verdict) and "FAILED" in bundle["text/plain"]
    assert all(word in bundle["text/html"] for word in ("FAILED normal, seed 0", "again: kiln verify", "<table"))
