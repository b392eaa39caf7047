"""A contract with twelve configs, of which ten do something bad each: to itself, to its process, or to the machine."""

from __future__ import annotations

import ctypes
import os
import time

import numpy

import kiln.cute as cute
from kiln import const_expr

THREADS = 32
STATUSES = {
    "hangs": "timeout",  # first, so that it is the first job of its worker: a later one is tried twice
    "compiles for ever": "compile_timeout",
    "good": "ok",
    "raises": "error",
    "aborts": "crash",
    "segfaults": "crash",
    "eats memory": "oom",
    "wrong": "wrong",
    "out of bounds": "wrong",
    "does not compile": "compile_error",
    "exits": "crash",
    "slow": "ok",
}
FAULTS = tuple(STATUSES)
configs = [{"fault": fault} for fault in FAULTS]
tolerance = {"rtol": 0.0, "atol": 0.0}


def get_inputs(n=256):
    return [numpy.random.standard_normal(n).astype(numpy.float32)]


def reference_fn(x):
    return x + x


@cute.kernel
def double_of(x: cute.Tensor, out: cute.Tensor, fault: cute.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * THREADS + thread
    out[at] = x[at] + x[at]
    if const_expr(fault == "wrong"):
        if at == 7:
            out[at] = x[at]
    if const_expr(fault == "out of bounds"):
        if at == 0:
            past = cute.make_tensor(out.iterator + cute.size(out), cute.make_layout(8))
            past[3] = x[at]
    if const_expr(fault == "hangs"):
        while x[at] == x[at]:
            out[at] = x[at]
    if const_expr(fault == "does not compile"):
        out[at] = cute.no_such_function(x[at])
    if const_expr(fault == "compiles for ever"):
        while True:
            time.sleep(0.01)


@cute.jit
def double(x: cute.Tensor, out: cute.Tensor, fault: cute.Constexpr):
    double_of(x, out, fault).launch(grid=(cute.size(x) // THREADS, 1, 1), block=(THREADS, 1, 1))


def kernel_fn(x, config=None):
    fault = config["fault"] if config else "good"
    out = numpy.empty_like(x)
    if fault == "raises":
        raise RuntimeError("as it was told to")
    if fault == "aborts":
        os.abort()
    if fault == "segfaults":
        ctypes.string_at(0)
    if fault == "exits":
        os._exit(0)
    if fault == "eats memory":
        kept = [numpy.ones(1 << 23) for _ in range(64)]  # 4 GB
        time.sleep(0.1 * len(kept))
    if fault == "slow":
        time.sleep(0.01)
    double(x, out, fault)
    return out
