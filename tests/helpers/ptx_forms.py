"""PTX instructions with the targets that take them (`tests/hardware/ptx_forms.tsv`), and ptxas to ask again.

A form is an instruction over registers that the kernel around it declares: %r (b32), %d (b64), %h (b16), %f (f32),
%q (b128); %p0 is an elected lane, %p1 a flag; %s0 and %s1 are addresses of shared memory, %sx0 one of 64 bits, %g0 and
%g1 of global memory, %m0 and %m1 generic ones. %o are the results, of the type that `out` names.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kiln.hardware import toolchain

TARGETS = tuple("90a 100 100a 100f 103a 103f 107a 107f 110a 110f 120 120a 120f 121a 121f".split())
TABLE = Path(__file__).parents[1] / "hardware" / "ptx_forms.tsv"
NEWEST = "9.4"
"""The PTX version that the table was made with, of CUDA 13.4."""


class Form(NamedTuple):
    """A line of the table."""

    feature: str
    """Its name in `hardware/features.py`; "-" for what no target takes."""
    targets: str
    ptx: str
    """The first version of PTX that has it."""
    out: str
    """The type of its results; "-" if it has none."""
    text: str


def forms() -> list[Form]:
    """Return the lines of the table."""
    with TABLE.open(newline="") as file:
        return [Form(*line) for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]


def kernel(form: Form, number: int) -> str:
    """Return a kernel with one form, on one line; its registers are loaded, so that ptxas removes nothing."""
    out = {"r": "b32", "d": "b64", "h": "b16", "f": "f32", "p": "pred"}.get(form.out, "b32")
    count = 1 + max((int(one) for one in re.findall(r"%o(\d+)", form.text)), default=0)
    parts = [
        f".visible .entry k{number}(.param .u64 in, .param .u64 out) .maxntid 128 .minnctapersm 1 {{",
        ".reg .b32 %r<160>, %s<2>; .reg .b64 %d<16>, %g<2>, %m<2>, %sx<1>; .reg .b16 %h<8>; .reg .f32 %f<8>;",
        f".reg .b128 %q<1>; .reg .pred %p<2>; .reg .{out} %o<{count}>;",
        "ld.param.u64 %m0, [in]; ld.param.u64 %m1, [out]; cvta.to.global.u64 %g0, %m0; cvta.to.global.u64 %g1, %m1;",
        "mov.u32 %s0, smem; add.u32 %s1, %s0, 64; cvt.u64.u32 %sx0, %s0; ld.shared.b128 %q0, [%s0];",
        "elect.sync _|%p0, 0xffffffff; setp.ne.u64 %p1, %g0, 0;",
    ]
    types = {"r": "b32", "d": "b64", "h": "b16", "f": "f32"}
    for letter, place in sorted(set(re.findall(r"%([rdhf])(\d+)", form.text))):
        parts.append(f"ld.global.{types[letter]} %{letter}{place}, [%g0+{8 * int(place)}];")
    parts.append(form.text)
    if form.out not in ("-", "p"):
        parts += [f"st.global.{out} [%g1+{8 * i}], %o{i};" for i in range(count) if f"%o{i}" in form.text]
    return " ".join([*parts, "ret; }"])


def refused(target: str, wanted: Iterable[Form]) -> list[Form]:
    """Return the forms that ptxas refuses for a target, in the newest version of PTX."""
    tool = toolchain.find("ptxas")
    assert tool is not None
    left, found = list(wanted), []
    head = f".version {NEWEST}\n.target sm_{target}\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"
    words = [str(tool.path), "-O0", "-arch", f"sm_{target}", "-o", "/dev/null", "/dev/stdin"]
    while left:
        text = head + "\n".join(kernel(form, i) for i, form in enumerate(left)) + "\n"
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        lines = {int(line) - 5 for line in re.findall(r"line (\d+); (?:error|fatal)", done.stderr)}
        lines |= {int(number) for number in re.findall(r"Function 'k(\d+)' uses", done.stderr)}
        assert lines, f"ptxas names no line: {done.stderr}"
        found += [form for i, form in enumerate(left) if i in lines]
        left = [form for i, form in enumerate(left) if i not in lines]
    return found
