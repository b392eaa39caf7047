"""Tools of test programs: timing, dry runs, checks for spills, options for tensor initialisation."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from ._support import lazy
from .base_dsl.target import get_target, target
from .hardware import current
from .measure.timing import CantImplementError, JitArguments, benchmark, get_workspace_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__getattr__ = lazy.names(__name__, {})
__all__ = [
    "CantImplementError",
    "JitArguments",
    "add_tensor_init_args",
    "assert_no_local_memory",
    "assert_no_spills",
    "benchmark",
    "dry_run",
    "get_workspace_count",
    "validate_tensor_init_args",
]


@contextlib.contextmanager
def dry_run(arch: str | None = None) -> Iterator[list[Any]]:
    """Compile calls for an NVIDIA GPU while open, and launch nothing: needs no GPU, and takes arrays in host memory.

    Yields a list to which every launch is added: `kernel`, `grid`, `block`, `cluster`, `smem`, `resources`, `remarks`,
    `artifacts`. Functions that were called before keep their compiled code, so a process does this for one
    architecture. Code has line information, so remarks name lines of the program.

    Args:
        arch: the architecture, such as "sm_90a"; by default the one that programs are compiled for.
    """
    arch = arch or current.architecture(target=get_target("nvidia")).name
    variables = {"CUTE_DSL_ARCH": arch, "CUTE_DSL_LINEINFO": "1"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with target("nvidia") as chosen, chosen.dry_run() as launches:
            yield launches
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def assert_no_spills(*kernels: Any) -> None:
    """Raise AssertionError if one of `kernels` spills registers: compiled functions, or launches of `dry_run`."""
    _assert_fits(kernels, lambda used: used.spill_stores or used.spill_loads)


def assert_no_local_memory(*kernels: Any) -> None:
    """Raise AssertionError if one of `kernels` spills registers or has arrays in local memory.

    `kernels` are compiled functions, or launches of `dry_run`.
    """
    _assert_fits(kernels, lambda used: used.spill_stores or used.spill_loads or used.stack)


def _assert_fits(kernels: tuple[Any, ...], bad: Callable[[Any], Any]) -> None:
    messages: list[str] = []
    for one in kernels:
        kernel = getattr(one, "kernel", None)
        by_kernel = {kernel: one.resources} if kernel is not None else one.resources
        if not by_kernel:
            raise AssertionError(
                f"no resources are known of the kernels of {one!r}: was it compiled for a GPU, with ptxas?"
            )
        remarks = one.remarks if kernel is not None else one.executable.remarks
        for name, used in by_kernel.items():
            if used is None or not used.registers:
                raise AssertionError(f"ptxas reported nothing about the kernel {name}")
            if bad(used):
                messages += [str(remark) for remark in remarks if remark.kernel == name and remark.kind != "resources"]
    if messages:
        raise AssertionError("\n".join(["kernels use local memory:", *dict.fromkeys(messages)]))


def add_tensor_init_args(parser: argparse.ArgumentParser, supports_int_dtypes: bool = True) -> None:
    """Add the options `--init_normal`, `--normal_mean` and `--normal_std` to a test program, for how its tensors are
    filled.

    Args:
        parser: the program's parser.
        supports_int_dtypes: say in the help that tensors of integers stay random.
    """
    note = "; tensors of integers stay random" if supports_int_dtypes else ""
    parser.add_argument("--init_normal", action="store_true", help=f"fill tensors from a normal distribution{note}")
    parser.add_argument("--normal_mean", type=float, default=0.0, help="its mean")
    parser.add_argument("--normal_std", type=float, default=1.0, help="its standard deviation")


def validate_tensor_init_args(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End the program with a message if the options of `add_tensor_init_args` contradict each other.

    Args:
        args: the parsed options.
        parser: the program's parser, which prints the message.
    """
    if args.normal_std <= 0:
        parser.error(f"--normal_std must be positive, not {args.normal_std}")
    if not args.init_normal and (args.normal_mean != 0.0 or args.normal_std != 1.0):
        parser.error("--normal_mean and --normal_std need --init_normal")
