"""How compile time and memory grow with the size of one kernel, for the CPU target: many unrolled steps, without the
disk cache.

    python benchmarks/large_kernels.py [--only TEXT] [--longest SECONDS] [--library]

A step is a few operations of arithmetic, or has a dynamic `if`, or two barriers with shared memory between them. Each
number of steps has a process of its own; a kind ends with the first that takes longer than SECONDS. Lines are those of
the MLIR that the program is traced to. Times to compile are processor time, with what a process does once; "us a line"
divides them by the lines: where compiling is linear it does not grow. "bits" are the sum of the results' bit patterns:
they do not depend on how a kernel is compiled.

`--library` takes attention of the kernel library in place of these: a tiny problem, from the call to its result, stage by
stage. "lowering" are Kiln's passes on MLIR and the conversion to LLVM IR, "again" is the second call.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

KINDS = {
    "straight": (1000, 2000, 4000, 8000, 16000),
    "branches": (500, 1000, 2000, 4000, 8000),
    "barriers": (50, 100, 200, 400, 800, 1600),
}
"""Numbers of steps."""
THREADS = 32
LIBRARY = ("attention", "attention backward")
COLUMNS = ("operations", "all", "tracing", "lowering", "optimize", "codegen", "load", "again")
"""What is told of a function of the library: `optimize` and `codegen` are LLVM's, and "again" is the second call."""


def program(kind: str, steps: int) -> Any:
    """A jit function that launches a kernel of many steps."""
    import kiln
    from kiln import cute

    @cute.kernel
    def straight(x: cute.Tensor, y: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        v, w = x[i], y[i]
        for _ in kiln.range_constexpr(steps):
            v = (v * 0.75 + w) * 0.5 - w * 0.25
            w = w + v
        y[i] = v + w

    @cute.kernel
    def branches(x: cute.Tensor, y: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        v = x[i]
        for step in kiln.range_constexpr(steps):
            if v < step % 7 * 0.25:
                v = v * 0.5 + 1.0
            else:
                v = v - 0.75
        y[i] = v

    @cute.kernel
    def barriers(x: cute.Tensor, y: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        shared = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, THREADS), cute.make_layout(THREADS))
        v = x[i]
        for step in kiln.range_constexpr(steps):
            shared[i] = v
            cute.arch.barrier()
            v = v * 0.5 + shared[(i + step) % THREADS]
            cute.arch.barrier()
        y[i] = v

    kernel = {"straight": straight, "branches": branches, "barriers": barriers}[kind]

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=THREADS)

    return launch


def child(kind: str, steps: int) -> None:
    """Compile one kernel, call it, and print what it took."""
    import numpy as np

    import kiln
    from kiln import cute
    from kiln.cute.runtime import from_dlpack

    x, y = np.linspace(-1, 1, THREADS, dtype=np.float32), np.ones(THREADS, np.float32)
    with kiln.target("cpu"):
        start = time.process_time()
        compiled = cute.compile(program(kind, steps), from_dlpack(x), from_dlpack(y))
        spent = time.process_time() - start
        calls = []
        for _ in range(5):
            y[:] = 1
            start = time.perf_counter()
            compiled(from_dlpack(x), from_dlpack(y))
            calls.append(time.perf_counter() - start)
    report: dict[str, Any] = {"all": spent, "call": min(calls)}
    report["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    report["lines"] = str(compiled.__mlir__).count("\n")
    report["bits"] = int(y.view(np.uint32).astype(np.uint64).sum()) % 10**9
    print(json.dumps(report))


def library(name: str) -> None:
    """Call a function of the library once, and print what each stage took."""
    import ml_dtypes
    import numpy as np

    import kiln
    from kiln import kernels
    from kiln.base_dsl import compiler
    from kiln.mlir import ir
    from kiln.targets.cpu.target import CpuTarget

    spent = dict.fromkeys((*COLUMNS, "compile"), 0.0)
    compile_ = CpuTarget.compile

    def compiling(target: Any, module: ir.Module, *args: Any) -> Any:
        def count(_: ir.Operation) -> ir.WalkResult:
            spent["operations"] += 1
            return ir.WalkResult.ADVANCE

        module.operation.walk(count)
        begun = time.process_time()
        executable = compile_(target, module, *args)
        spent["compile"] += time.process_time() - begun
        for stage, seconds in executable.timings.items():
            spent[stage if stage in COLUMNS else "lowering"] += seconds
        return executable

    CpuTarget.compile = compiling  # pyright: ignore[reportAttributeAccessIssue]
    compiler.time = argparse.Namespace(perf_counter=time.process_time)  # processor time of stages
    x = np.linspace(-1, 1, 128 * 128, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(1, 128, 1, 128)
    lse = np.zeros((1, 1, 128), np.float32)
    with kiln.target("cpu"):
        for call in ("all", "again"):
            start = time.process_time()
            if name == "attention":
                kernels.flash_attention(x, x, x, causal=True)
            else:
                kernels.flash_attention_backward(x, x, x, x, x, lse, causal=True)
            spent[call] = time.process_time() - start
    spent["tracing"] = spent["all"] - spent["again"] - spent["compile"]
    print(json.dumps(spent))


def report_library(environment: dict[str, str]) -> None:
    """Print a row for each function of the library."""
    print(f"{'':20}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name in LIBRARY:
        command = [sys.executable, __file__, "--child", name, "0"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        r = json.loads(done.stdout)
        print(f"{name:20}{r['operations']:12.0f}" + "".join(f"{r[column]:12.2f}" for column in COLUMNS[1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kinds whose names contain this")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds after which a kind ends")
    parser.add_argument("--library", action="store_true", help="attention of the kernel library, stage by stage")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        library(given.child[0]) if given.child[0] in LIBRARY else child(given.child[0], int(given.child[1]))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    if given.library:
        with tempfile.TemporaryDirectory() as folder:  # an empty disk cache; native code of Kiln itself is kept
            report_library({**os.environ, "CUTE_DSL_CACHE_DIR": folder})
        return
    columns = ("lines", "compile s", "us a line", "memory GB", "call ms", "bits")
    print(f"{'':16}" + "".join(f"{column:>12}" for column in columns))
    environment = {**os.environ, "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    for kind in (kind for kind in KINDS if given.only in kind):
        for steps in KINDS[kind]:
            command = [sys.executable, __file__, "--child", kind, str(steps)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{kind} {steps}: {done.stderr}")
            r = json.loads(done.stdout)
            numbers = f"{r['lines']:12}{r['all']:12.2f}{1e6 * r['all'] / r['lines']:12.0f}"
            print(f"{kind:10}{steps:6}{numbers}{r['memory']:12.2f}{1e3 * r['call']:12.3f}{r['bits']:12}", flush=True)
            if r["all"] > given.longest:
                break


if __name__ == "__main__":
    main()
