# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""What tests of native calls share: which calls Python took, and a function that looks at a matrix."""

from __future__ import annotations

import sys
import threading

import numpy as np

from kiln import Int64, cute
from kiln.base_dsl.compiled_function import CompiledFunction
from kiln.base_dsl.function import JitFunction
from kiln.interop.arguments import loading

WARM_UP = 10
"""Calls after which native code takes those it can."""


def strays(function, *args, **kwargs):
    """How many of a few calls were not taken by whom they should be: native code (after calls by which it gets to know a function),
    or Python where there is none."""
    for _ in range(WARM_UP):
        function(*args, **kwargs)
    return strays_of(lambda: [function(*args, **kwargs) for _ in range(3)], 3)


def strays_of(run, calls):
    """The same of so many calls that `run` makes."""
    return python_calls(run) if loading.loaded() is not None else calls - python_calls(run)


def python_calls(run):
    """How many calls of compiled and jit functions Python takes while `run` runs."""
    count = 0
    names = {CompiledFunction._run_in_python.__code__, JitFunction._run_in_python.__code__}

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code in names

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@cute.jit
def back(x):
    return x


@cute.jit
def look(x: cute.Tensor):
    """A number that depends on all that is passed of a matrix."""
    rows, columns = x.shape
    a, b = x.stride
    return Int64(rows) * 1000003 + Int64(columns) * 10007 + Int64(a) * 101 + Int64(b)


def seen(shape, strides):
    """The same in Python."""
    return shape[0] * 1000003 + shape[1] * 10007 + strides[0] * 101 + strides[1]


class CUstream:
    """As cuda-bindings' class of this name: a handle by int()."""

    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        if self.handle is None:
            raise RuntimeError("no handle")
        return self.handle


def matrices():
    """Views of many layouts."""
    base = np.arange(240, dtype=np.float32).reshape(12, 20)
    return [base, base.T, base[::2], base[:, ::2], base[2:3], base[:, 4:5], base[:1, :1], base[3:, 8:]]


def wait_for_compilers() -> None:
    """Until no thread of Kiln compiles: while one traces native functions, Python takes the calls of jit functions."""
    for thread in threading.enumerate():
        if thread.name.startswith("kiln:"):
            thread.join()
