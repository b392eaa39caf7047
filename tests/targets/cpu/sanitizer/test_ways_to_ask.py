"""The sanitizer from the command line, from the environment and from pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.workbench.run import split

PROGRAM = """
import sys
import numpy as np
from kiln import Float32, cute

@cute.kernel
def shift(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, 64), cute.make_layout(64))
    staged[t] = x[t]
    y[t] = staged[(t + 40) % 64]

@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    shift(x, y).launch(grid=1, block=64)

def test_shift():
    main(np.zeros(64, np.float32), np.zeros(64, np.float32))

if __name__ == "__main__":
    test_shift()
    print("done", *sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "test_program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.quick(0)
def test_kiln_run(child, program: Path) -> None:
    assert child("-m", "kiln", "run", "--target", "cpu", program).stdout == "done\n"
    wrong = child("-m", "kiln", "run", "--sanitize", program, "--target")
    assert wrong.returncode == 1
    assert "race in kernel shift" in wrong.stderr
    assert "staged[t] = x[t]" in wrong.stderr
    right = child("-m", "kiln", "run", "--sanitize=sync", program)
    assert right.stdout == "done\n"
    assert "kiln run: the sanitizer found nothing under 4 schedules\n" in right.stderr
    assert "found nothing" not in wrong.stderr


ENDS = """
import sys
import numpy as np
import kiln
from kiln import Float32, Int64, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync

@cute.kernel
def kernel(x: cute.Tensor, what: kiln.Constexpr):
    t, _, _ = arch.thread_idx()
    shared = cute.make_tensor(arch.alloc_smem(Float32, 32, 128), cute.make_layout(32))
    shared[t] = x[t]
    arch.fence_view_async_shared()
    if kiln.const_expr(what != "race"):
        arch.sync_threads()
    if kiln.const_expr(what == "stuck"):
        barrier = arch.alloc_smem(Int64, 1)
        if t == 0:
            arch.mbarrier_init(barrier, 2)
        arch.sync_threads()
        arch.mbarrier_wait(barrier, 0)
    elif kiln.const_expr(what == "fault"):
        cute.make_tensor(cute.make_ptr(Float32, Int64(64), cute.AddressSpace.gmem), cute.make_layout(64))[t] = 1.0
    elif kiln.const_expr(what == "prints"):
        cute.printf("x\\n")
    else:
        x[t] = shared[31 - t]

@cute.kernel
def sends(store: cute.CopyAtom, boxes: cute.Tensor):
    t, _, _ = arch.thread_idx()
    shared = cute.make_tensor(arch.alloc_smem(Float32, 32, 128), cute.make_layout(32))
    shared[t] = 1.0
    arch.fence_view_async_shared()
    arch.sync_threads()
    box = cute.local_tile(boxes, (32,), (0,))
    source, target = cpasync.tma_partition(
        store, 0, cute.make_layout(1), cute.group_modes(shared, 0, 1), cute.group_modes(box, 0, 1)
    )
    if t < 32:
        cute.copy(store, source, target)
        arch.cp_async_bulk_commit_group()  # nobody waits for it

@cute.jit
def main(x: cute.Tensor, what: kiln.Constexpr):
    if kiln.const_expr(what == "warned"):
        store, boxes = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), x, cute.make_layout(32), (32,)
        )
        sends(store, boxes).launch(grid=1, block=32)
    else:
        kernel(x, what).launch(grid=1, block=32)

for what in sys.argv[2].split(","):
    try:
        if what == "error":
            raise ValueError(what)
        if what == "exits":
            sys.exit()
        if what == "asked":
            with kiln.sanitize(raises=False):
                main(np.zeros(32, np.float32), "race")
        else:
            main(np.zeros(32, np.float32), what)
    except Exception as failure:
        if sys.argv[1] == "raises":
            raise
"""
ONCE = "under 1 schedule (a launch ran once: "


@pytest.mark.parametrize(
    ("arguments", "code", "last"),
    [
        ("raises right", 0, "the sanitizer found nothing under 4 schedules"),
        ("raises warned", 1, f"the sanitizer found 1 warning {ONCE}it had a finding or a fault)"),
        ("raises warned,exits", 1, f"the sanitizer found 1 warning {ONCE}it had a finding or a fault)"),
        ("raises warned,warned,right", 1, "the sanitizer found 1 warning under 4 schedules"),
        ("raises race", 1, f"the program ended with SanitizerError; the sanitizer found 3 errors {ONCE}it had a finding or a fault)"),
        ("catches race,warned", 1, f"the sanitizer found 3 errors and 1 warning {ONCE}it had a finding or a fault)"),
        ("raises stuck", 1, f"the program ended with DeadlockFault; the sanitizer found 1 error {ONCE}it had a finding or a fault)"),
        ("catches stuck", 1, f"the sanitizer found 1 error {ONCE}it had a finding or a fault)"),
        ("raises fault", 1, f"the program ended with MemoryFault; the sanitizer found 1 error {ONCE}it had a finding or a fault)"),
        ("catches fault", 1, f"the sanitizer found 1 error {ONCE}it had a finding or a fault)"),
        ("raises right,error", 1, "the program ended with ValueError; the sanitizer had no findings before that under 4 schedules"),
        ("raises error", 1, "the program ended with ValueError; no kernel ran to its end in this process"),
        ("raises prints", 0, f"the sanitizer found nothing {ONCE}its kernel prints)"),
        ("raises asked,right", 0, "the sanitizer found nothing under 4 schedules"),
    ],
)  # fmt: skip
@pytest.mark.quick(2)
def test_the_last_line_and_the_exit_code(child, tmp_path: Path, arguments: str, code: int, last: str) -> None:
    path = tmp_path / "ends.py"
    path.write_text(ENDS)
    done = child("-m", "kiln", "run", "--sanitize", path, *arguments.split())
    assert done.stderr.splitlines()[-1] == f"kiln run: {last}"
    assert done.returncode == code


def test_a_report_as_json(child, program: Path, tmp_path: Path) -> None:
    done = child("-m", "kiln", "run", "--sanitize-report", "found.json", program, "x")
    assert done.stdout == "done x\n", done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert {entry["kind"] for entry in found} >= {"race"}


def test_a_report_goes_where_the_program_began(child, program: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    program.write_text(f"import kiln, os\nos.chdir('elsewhere')\n{PROGRAM}")
    done = child(program, KILN_SANITIZE="race", KILN_REPORT="found.json")
    assert done.stdout == "done\n", done.stderr
    assert "race" in (tmp_path / "found.json").read_text()


@pytest.mark.parametrize("kind", ["race", "banks"])
def test_a_report_that_cannot_be_written_is_told(child, program: Path, kind: str) -> None:
    done = child(program, KILN_SANITIZE=kind, KILN_REPORT="nowhere/found.json")
    assert "nowhere/found.json cannot be written (No such file or directory)" in done.stderr
    assert '"shift"' in done.stderr


def test_findings_and_counts_in_one_report(child, program: Path, tmp_path: Path) -> None:
    done = child(program, KILN_SANITIZE="race,banks,sectors", KILN_REPORT="found.json")
    assert done.stdout == "done\n", done.stderr
    report = json.loads((tmp_path / "found.json").read_text())
    assert [each["kind"] for each in report["findings"]][0] == "race"
    assert report["bank_conflicts"][0]["kernel"] == report["coalescing"][0]["kernel"] == "shift"
    text = child(program, KILN_SANITIZE="race,banks", KILN_REPORT="-").stdout
    assert "race in kernel shift" in text and "wavefronts" in text
    old = child(program, KILN_SANITIZE="race", KILN_SANITIZE_REPORT="found.json").stderr
    assert "KILN_SANITIZE_REPORT is not read any more" in old and "KILN_REPORT names the file" in old


def test_the_environment(child, program: Path) -> None:
    assert "race in kernel shift" in child(program, KILN_SANITIZE="race").stderr
    assert "unknown: rice" in child(program, KILN_SANITIZE="rice").stderr


def test_pytest(child, program: Path) -> None:
    # an installed Kiln would be loaded by itself, too
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plain = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", program, KILN_TARGET="cpu", **alone)
    assert plain.returncode == 0, plain.stdout
    watched = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "--kiln-sanitize", program, **alone)
    assert watched.returncode == 1
    assert "SanitizerError" in watched.stdout
    kinds = child("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "--kiln-sanitize-kinds=sync", program, **alone)
    assert kinds.returncode == 0 and "kiln: kernels ran under up to 4 schedules" in kinds.stdout


UNWAITED = """
import kiln
import numpy as np
from kiln import Float32, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync


@cute.kernel
def stores(x: cute.Tensor):
    shared = cute.make_tensor(arch.alloc_smem(Float32, 128, 128), cute.make_layout(128))
    t = arch.thread_idx()[0]
    for i in range(4):
        shared[4 * t + i] = 1.0
    arch.fence_view_async_shared()
    arch.sync_threads()
    if t == 0:
        cute.copy(cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32), shared, x)
        arch.cp_async_bulk_commit_group()  # nobody waits for it


@cute.jit
def run(x: cute.Tensor):
    stores(cute.make_tensor(x.iterator, cute.make_layout(128))).launch(grid=1, block=32)


def test_stores():
    run(np.zeros(128, np.float32))
"""


def test_pytest_fails_for_warnings_of_races_and_synchronization(child, tmp_path: Path) -> None:
    (tmp_path / "test_stores.py").write_text(UNWAITED)
    words = ("-m", "pytest", "-q", "-p", "kiln.pytest_plugin", "--kiln-sanitize", "test_stores.py")
    done = child(*words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 1 and "1 failed" in done.stdout and "SanitizerError" in done.stdout, done.stdout


def test_the_option_takes_its_value_after_an_equals_sign() -> None:
    assert split(["--sanitize", "p.py"]) == (["--sanitize"], ["p.py"])
    assert split(["--sanitize=race", "p.py", "-x"]) == (["--sanitize=race"], ["p.py", "-x"])
    assert split(["--sanitize-report", "f", "p.py"]) == (["--sanitize-report", "f"], ["p.py"])
