"""The pictures of the lessons, one function each: `python docs/figures/lessons.py` writes docs/learn/pictures."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from drawing import Picture, save

import kiln
import kiln.cute as cute
from kiln import Float16, Float32
from kiln.cute.kernel_trace import KernelTrace
from kiln.cute.nvgpu import warp
from kiln.cute.pictures.draw import layout_svg, tv_svg
from kiln.cute.pictures.tensor_map import tile_layout, tma_svg
from kiln.cute.pictures.tensor_memory import accumulator_svg

LESSONS = Path(__file__).parents[1] / "learn"
FOLDER = tempfile.TemporaryDirectory()
"""Where cells are files while the process lives: the source of a function is looked up when it is first called."""


def alt(name: str) -> str:
    """Return the description of a picture, which its lesson has."""
    lesson = next(LESSONS.glob(f"{name[:2]}-*.md")).read_text()
    found = re.search(rf"\{{image\}} pictures/{name}\.light\.svg\n:alt: (.+)\n", lesson)
    assert found is not None, f"no lesson shows {name}, or it has no :alt:"
    return found[1]


def program(number: int, *words: str) -> dict[str, Any]:
    """Run the code cells of a lesson in which one of these words occurs, on the CPU target, and return their names."""
    text = next(LESSONS.glob(f"{number:02}-*.md")).read_text()
    made: dict[str, Any] = {"__name__": f"lesson_{number}"}
    folder = Path(FOLDER.name) / str(number)
    folder.mkdir(exist_ok=True)
    with kiln.target("cpu"), contextlib.redirect_stdout(io.StringIO()):
        for i, code in enumerate(re.findall(r"^```\{code-cell\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
            if any(word in code for word in words):
                file = folder / f"cell_{i}.py"
                file.write_text(code)
                exec(compile(code, str(file), "exec"), made)
    return made


def machine(name: str) -> Picture:
    """Draw a grid, SMs and memories."""
    p = Picture(760, 330, alt(name))
    p.text(98, 18, "a grid of blocks", bold=True)
    for i in range(12):
        p.box(20 + i % 3 * 52, 36 + i // 3 * 40, 46, 34, "blue", f"block\n{i}", size=10)
    p.arrow(185, 110, 238, 110)
    p.text(211, 98, "dealt out", size=11, color="muted")
    p.text(500, 18, "the chip: an H200 has 132 SMs", bold=True)
    for i in range(3):
        x = 250 + i * 168
        p.box(x, 36, 158, 168, "soft")
        p.text(x + 79, 49, f"SM {i}" if i < 2 else "SM 131", bold=True, size=12)
        for k in range(2):
            p.box(x + 8, 60 + k * 36, 142, 30, "blue", size=10)
            for w in range(4):
                p.box(x + 12 + w * 34, 64 + k * 36, 31, 22, "paper", "warp", size=9)
        p.box(x + 8, 134, 142, 28, "green", "registers: a thread", size=11)
        p.box(x + 8, 168, 142, 28, "orange", "shared memory: a block", size=11)
        p.arrow(x + 79, 206, x + 79, 232, color="muted")
    p.box(250, 234, 494, 28, "violet", "L2 cache: 60 MiB", size=12)
    p.arrow(497, 264, 497, 284, color="muted")
    p.box(250, 286, 494, 32, "red", "global memory: 141 GB, everybody, far away", size=12)
    p.text(95, 230, "a warp is 32 threads\nthat issue together", size=12, color="muted")
    return p


def index(name: str) -> Picture:
    """Draw which element each thread of three blocks gets."""
    p = Picture(700, 190, alt(name))
    for block in range(3):
        x = 20 + block * 224
        p.box(x, 30, 212, 66, "soft")
        p.text(x + 106, 18, f"block {block}", bold=True)
        for thread in range(4):
            i = block * 4 + thread
            inside = i < 10
            color = "orange" if i == 9 else "blue" if inside else "paper"
            p.box(x + 6 + thread * 51, 42, 47, 42, color, f"thread\n{thread}", size=11)
            p.arrow(x + 29 + thread * 51, 86, x + 29 + thread * 51, 116, color="ink" if inside else "bad")
            if inside:
                p.box(x + 6 + thread * 51, 118, 47, 30, "orange" if i == 9 else "green", f"[{i}]", size=13, mono=True)
            else:
                p.text(x + 29 + thread * 51, 132, "nothing", size=11, color="bad")
    p.text(20, 172, "i = block * 4 + thread", anchor="start", mono=True)
    p.text(468, 172, "2 * 4 + 1 = 9", anchor="start", mono=True)
    return p


def stages(name: str) -> Picture:
    """Draw what happens to a function: rewriting, tracing, running."""
    p = Picture(760, 190, alt(name))
    steps = (
        ("1. rewrite", "blue", "the source, once", '`if` and `for` become\ncalls that can ask\n"is this known?"'),
        (
            "2. trace",
            "green",
            "Python, once for each set of types",
            "print shows ?\nstatic values are used up\na program is written",
        ),
        ("3. run", "orange", "machine code, every call", "printf prints\nevery thread runs it\nno Python any more"),
    )
    for i, (title, color, when, what) in enumerate(steps):
        x = 15 + i * 252
        p.box(x, 30, 226, 110, color, what, size=13)
        p.text(x + 113, 16, title, bold=True, size=14)
        p.text(x + 113, 158, when, color="muted", size=12)
        if i < 2:
            p.arrow(x + 228, 85, x + 250, 85)
    return p


def race(name: str) -> Picture:
    """Draw two warps over time, without and with a barrier."""
    p = Picture(720, 250, alt(name))
    for row, (title, offset) in enumerate((("without a barrier", 0), ("with sync_threads()", 125))):
        p.text(10, offset + 18, title, anchor="start", bold=True)
        for number in range(2):
            y = offset + 34 + number * 40
            p.text(10, y + 15, f"warp {number}", anchor="start", size=12)
            p.line(70, y + 15, 700, y + 15)
            write = (250 if number == 0 else 90) if row == 0 else (230 if number == 0 else 90)
            read = write + 110 if row == 0 else 420
            p.box(write, y, 100, 30, "blue", "write", size=12)
            early = row == 0 and number == 1
            p.box(read, y, 100, 30, "red" if early else "green", "read: too early" if early else "read", size=12)
        if row:
            p.box(352, offset + 28, 14, 82, "orange")
            p.text(372, offset + 118, "everybody waits here", anchor="start", size=11, color="muted")
    p.arrow(560, 12, 700, 12, color="muted")
    p.text(545, 12, "time", size=11, color="muted")
    return p


def rows(name: str) -> str:
    """Draw a row-major matrix."""
    return layout_svg(cute.make_layout((4, 8), stride=(8, 1)), title="(4,8):(8,1)")


def tiles(name: str) -> str:
    """Draw the same matrix, cut into tiles."""
    return layout_svg(cute.zipped_divide(cute.make_layout((4, 8), stride=(8, 1)), (2, 4)))


def threads(name: str) -> str:
    """Draw which thread of eight holds which elements of a tile."""
    orders = (cute.make_ordered_layout((2, 4), order=(1, 0)), cute.make_ordered_layout((2, 2), order=(1, 0)))
    tile, thread_values = cute.make_layout_tv(*orders)
    return tv_svg(thread_values, tile)


def coalescing(name: str) -> Picture:
    """Draw the sectors that eight lanes touch: neighbours, far apart, and with vectors of 16 bytes."""
    p = Picture(740, 330, alt(name))
    cases = (
        ("coalesced: 8 lanes, 1 sector", [lane / 8 for lane in range(8)], 1 / 8, "green"),
        ("stride of 8 floats: 8 lanes, 8 sectors, 7/8 wasted", [float(lane) for lane in range(8)], 1 / 8, "red"),
        ("16-byte vectors: 8 lanes, 4 sectors, all used", [lane / 2 for lane in range(8)], 1 / 2, "green"),
    )
    for row, (title, starts, wide, color) in enumerate(cases):
        y = 14 + row * 108
        p.text(10, y, title, anchor="start", bold=True)
        for sector in range(8):
            x = 10 + sector * 90
            used = any(sector <= start < sector + 1 for start in starts)
            p.box(x, y + 60, 86, 26, color if used else "soft", f"sector {sector}", size=11)
        for lane, start in enumerate(starts):
            x = 10 + start * 90 + wide * 86 / 2
            at = 60 + lane * 86
            p.box(at - 26, y + 12, 52, 20, "blue", f"lane {lane}", size=10.5)
            p.line(at, y + 32, x, y + 60, color="muted", wide=1)
    return p


def butterfly(name: str) -> Picture:
    """Draw a sum over eight lanes by shuffles; the numbers in the boxes are computed."""
    p = Picture(700, 330, alt(name))
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    for row, step in enumerate((0, 4, 2, 1)):
        if step:
            values = [values[lane] + values[lane ^ step] for lane in range(8)]
        y = 34 + row * 84
        p.text(8, y + 15, f"step {step}" if step else "begin", anchor="start", size=12, color="muted")
        for lane in range(8):
            x = 80 + lane * 76
            if step:
                p.line(x + 25, y - 52, x + 25, y, color="line")
                p.line(80 + (lane ^ step) * 76 + 25, y - 52, x + 25, y, color="strong", wide=1)
            p.box(x, y, 50, 30, "green" if row == 3 else "blue", str(values[lane]), mono=True, size=14)
    for lane in range(8):
        p.text(105 + lane * 76, 16, f"lane {lane}", size=11, color="muted")
    return p


def plain(name: str) -> str:
    """Draw a tile of eight rows of eight banks."""
    return layout_svg(cute.make_layout((8, 8), stride=(8, 1)))


def swizzled(name: str) -> str:
    """Draw the same tile with a swizzle."""
    layout = cute.make_layout((8, 8), stride=(8, 1))
    return layout_svg(cute.make_composed_layout(cute.make_swizzle(3, 0, 3), 0, layout))


def fragment(name: str) -> str:
    """Draw the accumulator of one `mma.sync`."""
    atom = cute.make_mma_atom(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
    return tv_svg(atom.tv_layout_C, (16, 8), title="C of m16n8k16: lane T, value V")


def timeline(name: str) -> Picture:
    """Draw what a producer and a consumer do, as a trace of the CPU target has it."""
    relay = program(9, "import numpy", "def relay_kernel")["relay"]
    x = np.zeros((6, 32), np.float32)
    p = Picture(720, 230, alt(name))
    for k, count in enumerate((1, 3)):
        with kiln.target("cpu"), KernelTrace("ranges") as recorded:
            relay(x, x.copy(), count)
        (trace,) = recorded.traces()
        ranges = [event for event in trace.events if event.kind == "range"]
        top = 14 + k * 112
        p.text(10, top, f"{count} stage{'s' * (count > 1)}", anchor="start", bold=True)
        for warp_number, who in enumerate(("producer", "consumer")):
            y = top + 16 + warp_number * 36
            p.text(10, y + 14, who, anchor="start", size=12)
            p.line(84, y + 14, 710, y + 14)
        begins = sorted((event.begin, trace.tracks[event.track].warp, event.name) for event in ranges)
        for place, (_, warp_number, what) in enumerate(begins):
            y = top + 16 + warp_number * 36
            row = sum(own == warp_number for _, own, _ in begins[:place])
            p.box(88 + place * 52, y, 48, 28, "blue" if what == "load" else "green", f"{what[:4]} {row}", size=10.5)
    p.text(710, 222, "order recorded on the CPU target, not durations", anchor="end", size=11, color="muted")
    return p


def boxes(name: str) -> str:
    """Draw the boxes of a tensor, and one in shared memory."""
    tensor = cute.make_layout((100, 72), stride=(72, 1))
    smem = tile_layout(tensor, Float16, (32, 64), None)
    return tma_svg(tensor, Float16, smem, (32, 64))


def staircase(name: str) -> Picture:
    """Draw the TFLOP/s of the steps, from the table of the lesson."""
    text = next(LESSONS.glob("11-*.md")).read_text()
    speeds = re.findall(r"^\| (\d|cuBLAS) \| (\d+) \|", text, re.MULTILINE)
    date = re.search(r"\(H200, (\d{4}-\d\d-\d\d)", text)
    assert date is not None
    p = Picture(720, 330, alt(name))
    new = {"2": "WGMMA", "3": "pipeline", "4": "roles", "5": "TMA stores", "6": "persistent,\nclusters"}
    for grid in range(0, 801, 200):
        y = 270 - grid * 0.3
        p.line(50, y, 710, y, color="line" if grid == 0 else "soft", wide=1)
        p.text(44, y, str(grid), anchor="end", size=11, color="muted")
    for place, (step, speed) in enumerate(speeds):
        x, high = 64 + place * 108, int(speed) * 0.3
        p.box(x, 270 - high, 88, high, "blue" if step != "cuBLAS" else "orange")
        p.text(x + 44, 260 - high, speed, bold=True)
        p.text(x + 44, 284, f"step {step}" if step != "cuBLAS" else step, size=12)
        p.text(x + 44, 306, new.get(step, ""), size=11, color="muted")
    words = f"TFLOP/s, f16 GEMM, H200, {date[1]}: kiln run examples/hopper/step_N.py 4096 4096 4096"
    p.text(50, 14, words, anchor="start", size=12, color="muted")
    return p


def mask(name: str) -> Picture:
    """Draw which tiles of scores a causal mask skips, masks and leaves alone."""
    p = Picture(560, 290, alt(name))
    p.text(180, 14, "key tiles", bold=True)
    p.text(14, 150, "q", bold=True)
    for i in range(6):
        for j in range(6):
            color, word = ("green", "whole") if j < i else ("orange", "mask") if j == i else ("soft", "skip")
            p.box(34 + j * 50, 30 + i * 42, 46, 38, color, word, size=11)
    legend = (("green", "computed, no mask"), ("orange", "computed, masked"), ("soft", "never loaded"))
    for i, (color, words) in enumerate(legend):
        p.box(360, 60 + i * 40, 30, 26, color)
        p.text(400, 73 + i * 40, words, anchor="start", size=12)
    return p


def tensor_memory(name: str) -> str:
    """Draw the accumulator of a tcgen05 MMA in tensor memory."""
    return accumulator_svg(128, 64, 1)


def ship(name: str) -> Picture:
    """Draw what becomes of a kernel with a contract."""
    p = Picture(720, 250, alt(name))
    p.box(260, 70, 200, 110, "blue", "your file:\nkernel\nreference, inputs,\ncost, configs", size=13)
    left = ("verify: is it right?", "profile: what does it need?", "bench: how fast?", "tune: which config?")
    for i, words in enumerate(left):
        y = 16 + i * 58
        p.box(10, y, 180, 40, "green", words, size=12)
        p.arrow(258, 125, 192, y + 20, color="muted")
    right = ("PyTorch: operator,\ngradient, torch.compile", "JAX: jit, grad, vmap", "one .so for C,\nwithout Python")
    for i, words in enumerate(right):
        y = 24 + i * 76
        p.box(530, y, 180, 50, "orange", words, size=12)
        p.arrow(462, 125, 528, y + 25, color="muted")
    return p


PICTURES: dict[str, Callable[[str], Picture | str]] = {
    "00-machine": machine,
    "01-index": index,
    "02-stages": stages,
    "03-race": race,
    "04-rows": rows,
    "04-tiles": tiles,
    "04-threads": threads,
    "05-coalescing": coalescing,
    "06-butterfly": butterfly,
    "07-plain": plain,
    "07-swizzled": swizzled,
    "08-fragment": fragment,
    "09-timeline": timeline,
    "10-boxes": boxes,
    "11-staircase": staircase,
    "12-mask": mask,
    "13-tensor-memory": tensor_memory,
    "14-ship": ship,
}


def main(folder: Path = LESSONS / "pictures") -> list[Path]:
    """Write all pictures, or those that the command line names."""
    folder.mkdir(exist_ok=True)
    names = [name for name in PICTURES if not sys.argv[1:] or name in sys.argv[1:]]
    return [file for name in names for file in save(folder, name, PICTURES[name](name))]


if __name__ == "__main__":
    for written in main():
        print(f"wrote {written}")
