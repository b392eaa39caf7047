"""`kiln verify` from end to end: in processes of their own, with torch and CUDA served from host memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln.workbench.scaffold import new

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

RELU = """
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def relu_kernel(gA: cute.Tensor, gC: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    i = block * threads + thread
    m, n = gA.shape[1]
    if cutlass.dynamic_expr(i < m * n):
        a = gA[(None, (i // n, i % n))].load()
        gC[(None, (i // n, i % n))] = cute.where(a > 0, a, 0)

@cute.jit
def relu_host(mA: cute.Tensor, mC: cute.Tensor):
    vector = 16 // (mA.element_type.width // 8)
    gA, gC = cute.zipped_divide(mA, (1, vector)), cute.zipped_divide(mC, (1, vector))
    blocks = (cute.size(gA.shape[1]) + 255) // 256
    relu_kernel(gA, gC).launch(grid=(blocks, 1, 1), block=(256, 1, 1))

def kernel_fn(x):
    out = torch.empty_like(x)
    relu_host(from_dlpack(x, assumed_align=16), from_dlpack(out, assumed_align=16))
    return out

def reference_fn(x):
    return torch.relu(x)

def get_inputs():
    return [torch.randn(128, 256, dtype=torch.float16, device="cuda")]
"""


@pytest.mark.torch
def test_c1_a_script_of_three_lines_checks_a_kernel(child, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "verify_kernel.py").write_text(new.contents("relu", "empty")["scripts/verify_kernel.py"])
    (tmp_path / "kernel.py").write_text(RELU)
    done = child(
        "scripts/verify_kernel.py", "kernel.py", "--rtol", "1e-3", "--atol", "1e-3", KILN_TARGET="cpu", KILN_CPU_OPT="0"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    for kind in ("normal", "integers", "wide", "strided", "repeated", "deterministic", "sanitizer"):
        assert " ok " in lines[kind]
    assert "is not a multiple of 16" in lines["shifted"]
    assert "get_inputs takes no sizes" in lines["odd"]


STREAMS = """
import torch

def kernel_fn(x):
    with torch.cuda.stream(torch.cuda.Stream()):
        return x * 2

def reference_fn(x):
    return x * 2

def get_inputs():
    return [torch.rand(32, device="cuda")]
"""

IN_PROCESS = """
import sys
from kiln.workbench.core import runners
from kiln.workbench.verify import cli as verify
verify.make_runner = lambda args: runners.Inline()
print([verify.main([each, "--max-elements=4096", "--kinds=normal,odd"]) for each in sys.argv[1:]])
"""


@pytest.mark.quick(0)
@pytest.mark.torch
def test_c3_work_on_another_stream_and_the_example_of_the_page(child, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "streams.py").write_text(STREAMS)
    shutil.copy(EXAMPLES / "row_softmax.py", tmp_path)
    done = child("-c", IN_PROCESS, "streams.py", "row_softmax.py", KILN_TARGET="cpu", KILN_CPU_OPT="0")
    assert done.stdout.endswith("[1, 0]\n"), done.stdout + done.stderr
    assert "stream-order: kernel_fn puts work on a stream of its own" in done.stdout


CRASHES = """
import os, time
import numpy as np

def kernel_fn(x):
    if len(x) % 2:
        print("going down", flush=True)
        os.abort()
    if len(x) == 10:
        open("running", "w").close()
        time.sleep(1000)
    return x + 1

def reference_fn(x):
    return x + 1

def get_inputs(n=6):
    return [np.random.rand(n)]
"""


@pytest.mark.quick(0)
def test_a_kernel_that_ends_its_process_is_a_record(child, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(CRASHES)
    done = child("-m", "kiln", "verify", "kernel.py", "--kinds=normal,odd", KILN_TARGET="cpu", KILN_CPU_OPT="0")
    assert done.returncode == 1, done.stderr
    assert "crash: n+1: it ended its process by SIGABRT" in done.stdout
    assert "going down" in done.stdout
    done = child("-m", "kiln", "verify", "kernel.py", "--kinds=odd,wide", KILN_TARGET="cpu", KILN_CPU_OPT="0")
    # Two workers are enough.
    assert "not tried 2 checks before ended by crash" in " ".join(done.stdout.split())
    records = [json.loads(line) for line in (tmp_path / ".kiln" / "records.jsonl").read_text().splitlines()]
    assert {record["status"] for record in records} == {"crash"}
    assert "kiln verify kernel.py --n=7 --target=cpu --kinds=normal --seed=0" in [record["again"] for record in records]


def test_c18_interrupted(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(CRASHES)
    command = [sys.executable, "-m", "kiln", "verify", "kernel.py", "--n=10"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KILN_TARGET": "cpu"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as program:
        while not (tmp_path / "running").exists():
            assert program.poll() is None
            time.sleep(0.02)
        workers = [int(each) for each in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()]
        program.send_signal(signal.SIGINT)
        assert program.wait(2.0) == 130
        assert "interrupted" in (program.stderr.read() if program.stderr else "")
    assert workers
    assert not any(Path(f"/proc/{each}").exists() for each in workers)
