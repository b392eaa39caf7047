"""`kiln tour`: finds a race in a small kernel, mends it, and names the page to read next. It needs no GPU."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .core.options import Parser

_KERNEL = """\
@cute.kernel
def subtract_first(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    first = cute.make_tensor(cute.arch.alloc_smem(Float32, 1), cute.make_layout(1))
    if thread == 0:
        first[0] = x[0]
    y[thread] = x[thread] - first[0]
"""
_BARRIER = "    cute.arch.sync_threads()\n"
_PROGRAM = """\
import numpy as np

import kiln.cute as cute
from kiln import Float32


{kernel}

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    subtract_first(x, y).launch(grid=1, block=64)


x = np.arange(64, dtype=np.float32) + 5
y = np.empty_like(x)
launch(x, y)
assert np.array_equal(y, x - 5)
print("the result is right")
"""
_COMMAND = "kiln run --sanitize subtract_first.py"
_NEXT = """\
  kiln kb show missing-barrier     the page about this mistake; `kiln kb search WORDS` finds others
  kiln learn start 1               lessons of 15 to 30 minutes with exercises; this is the first that has code
  kiln new my_kernel               a kernel of your own, with a test and a benchmark
  kiln doctor                      what this machine has for Kiln, and what to install for GPUs"""


def main(argv: Sequence[str]) -> int:
    make_parser().parse_args(argv)
    from rich.console import Console
    from rich.syntax import Syntax

    out = Console(highlight=False, markup=False, soft_wrap=True)

    def say(text: str, style: str = "bold") -> None:
        out.print(text, style=style)

    def show(code: str, lit: int) -> None:
        if out.is_terminal:
            # a theme of the terminal's own colours: others draw names white, which a light terminal does not show
            out.print(Syntax(code, "python", theme="ansi_light", background_color="default", highlight_lines={lit}))
        else:
            out.print("".join(f"    {line}\n" for line in code.splitlines()), end="")

    lines = _KERNEL.splitlines(keepends=True)
    mended = "".join([*lines[:-1], _BARRIER, lines[-1]])
    say("Kiln runs every thread of a kernel on this CPU, no GPU needed. Here 64 threads read what thread 0 writes:\n")
    show(_KERNEL, len(lines))
    with tempfile.TemporaryDirectory() as folder:
        say(f"\nIs it right? On a GPU it usually seems so.\n$ {_COMMAND}\n")
        status, said = _run(_KERNEL, folder)
        if status == 0 or "race in kernel" not in said:
            print(
                f"kiln tour: the sanitizer found no race; `kiln doctor` looks for the reason\n{said}", file=sys.stderr
            )
            return 1
        say(said[said.index("subtract_first.py:") :], "none")
        say("\nThe fix is one barrier between the write and the reads:\n")
        show(mended, len(lines))
        say(f"\n$ {_COMMAND}\n")
        status, said = _run(mended, folder)
        say(said, "none")
    say("\nGo on with:")
    say(_NEXT, "none")
    return status


def _run(kernel: str, folder: str) -> tuple[int, str]:
    """Run the program with this kernel under the sanitizer; return the exit status and the output."""
    (Path(folder) / "subtract_first.py").write_text(_PROGRAM.format(kernel=kernel))
    command = [sys.executable, "-m", "kiln", *_COMMAND.split()[1:]]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout.replace(os.path.realpath(folder) + os.sep, "").strip()


def make_parser() -> argparse.ArgumentParser:
    return Parser(
        prog="kiln tour",
        description="Find a race in a small kernel, fix it, and name the page to read next. It takes a few seconds "
        "and needs no GPU.",
    )
