"""The plots of measurements: `python docs/figures/performance.py` writes docs/pictures/roofline.*.svg from docs/data."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from drawing import Picture, save
from speeds import GALLERY, SPEEDS, Speed, measured

PICTURES = Path(__file__).parents[1] / "pictures"
PAGE = Path(__file__).parents[1] / "performance.md"
TBS, TFLOPS = 4.8, 989.0
"""The memory bandwidth of an H200, and its f16 tensor cores, by the data sheet."""


class Point(NamedTuple):
    """A measured kernel: where its label stands, operations, and the least bytes it can move."""

    label: str
    place: str
    speed: Speed
    flops: float
    size: float


def _gemm(m: int, n: int, k: int, groups: int = 1) -> tuple[float, float]:
    """Return the operations of 16-bit GEMMs with M rows in all, and the bytes of A, B and D."""
    return 2.0 * m * n * k, 2.0 * (m * k + groups * n * k + m * n)


def _few_rows(m: int) -> Speed:
    table = "GEMM of few rows, bfloat16, N 28672, K 8192, sustained"
    return Speed("", "gemm_grouped", table, (str(m),), {"cuBLAS": "cuBLAS us"}, "Kiln us", "us")


GROUPED = next(each.speed for each in GALLERY if each.title == "Grouped GEMM")
POINTS = (
    Point("softmax", "right", SPEEDS["softmax"], 4.0 * 16384 * 32768, 4.0 * 16384 * 32768),
    Point("GEMM of 16 rows", "left", _few_rows(16), *_gemm(16, 28672, 8192)),
    Point("MLA decode", "right", SPEEDS["mla"], 2.0 * 128 * 16 * 8192 * 1088, 2.0 * 128 * 8192 * 576),
    Point("GEMM of 128 rows", "left", _few_rows(128), *_gemm(128, 28672, 8192)),
    Point("grouped GEMM", "right", GROUPED, *_gemm(64 * 128, 4096, 2048, 64)),
    Point("attention, causal", "beside", SPEEDS["attention"], 2.0 * 4 * 16 * 8192**2 * 128, 8.0 * 4 * 16 * 8192 * 128),
    Point("GEMM, 8192 cubed", "below", SPEEDS["gemm"], *_gemm(8192, 8192, 8192)),
)


def roofline(alt: str) -> Picture:
    """Draw both limits of an H200, and how near kernels and their peers come."""
    p = Picture(720, 420, alt)
    left, bottom, per_x, per_y = 60.0, 360.0, 152.0, 96.0

    def at(intensity: float, tflops: float) -> tuple[float, float]:
        return left + (math.log10(intensity) + 0.3) * per_x, bottom - math.log10(tflops) * per_y

    for decade in range(4):
        x, y = at(10.0**decade, 10.0**decade)
        p.line(x, bottom, x, 30, color="soft", wide=1)
        p.line(left, y, 700, y, color="soft", wide=1)
        p.text(x, bottom + 14, f"{10**decade}", size=11, color="muted")
        p.text(left - 8, y, f"{10**decade}", size=11, color="muted", anchor="end")
    p.line(left, bottom, 700, bottom)
    p.line(left, bottom, left, 30)
    p.text(380, bottom + 32, "operations for each byte of memory", size=12, color="muted")
    p.text(left, 14, "TFLOP/s", anchor="start", size=12, color="muted")
    ridge = TFLOPS / TBS
    p.line(*at(0.55, 0.55 * TBS), *at(ridge, TFLOPS), color="strong", wide=2)
    p.line(*at(ridge, TFLOPS), 700, at(1, TFLOPS)[1], color="strong", wide=2)
    p.text(*at(2.7, 40), f"memory: {TBS:g} TB/s", color="strong", size=12)
    p.text(at(1600, 1)[0], at(1, TFLOPS)[1] - 12, f"f16 tensor cores: {TFLOPS:g} TFLOP/s", color="strong", size=12)
    dates: set[str] = set()
    for each in POINTS:
        found = measured(each.speed)
        assert found is not None, each.label
        dates.add(found.date)
        as_tflops = (lambda v: v) if each.speed.unit == "TFLOP/s" else (lambda us, flops=each.flops: flops / us / 1e6)
        for value, color, size in ((found.peers[found.best], "soft", 8), (found.ours, "orange", 11)):
            x, y = at(each.flops / each.size, as_tflops(value))
            p.box(x - size / 2, y - size / 2, size, size, color, radius=size // 2)
        offset = {"right": (12, 2), "left": (-16, -10), "beside": (-14, -4), "below": (2, 22)}[each.place]
        anchor = {"right": "start", "below": "middle"}.get(each.place, "end")
        p.text(x + offset[0], y + offset[1], each.label, size=11.5, anchor=anchor)
    p.box(480, 286, 11, 11, "orange", radius=5)
    p.text(498, 291, "Kiln", anchor="start", size=12)
    p.box(481, 309, 8, 8, "soft", radius=4)
    p.text(498, 313, "its fastest peer measured", anchor="start", size=12)
    p.text(700, bottom + 52, f"H200, {', '.join(sorted(dates))}; docs/data", anchor="end", size=11, color="muted")
    return p


def alt_text() -> str:
    """Return the description of the picture, which its page has."""
    lines = PAGE.read_text().splitlines()
    return lines[lines.index("```{image} pictures/roofline.light.svg") + 1].removeprefix(":alt: ")


def main(folder: Path = PICTURES) -> list[Path]:
    """Write the plots."""
    return save(folder, "roofline", roofline(alt_text()))


if __name__ == "__main__":
    for written in main():
        print(f"wrote {written}")
