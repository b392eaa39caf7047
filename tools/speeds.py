"""Write the table of speeds into README.md and docs/index.md: `python tools/speeds.py [--check]`.

Every number is a cell of a page in `docs/data`, which a benchmark program wrote on the GPU that the page names.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "docs/", "docs/index.md": ""}
"""The pages with the table, and where docs/ is from there."""
MARKS = "<!-- speeds: python tools/speeds.py -->", "<!-- end of speeds -->"


class Speed(NamedTuple):
    """A row: what is computed, where its numbers stand (page, table, first cells of the row, columns), and their unit."""

    what: str
    page: str
    table: str
    row: tuple[str, ...]
    peer: str
    columns: tuple[str, str]
    unit: str


_SUSTAINED = "cuBLAS sustained", "Kiln sustained"
SPEEDS = (
    Speed(
        "GEMM, bf16, 8192 x 8192 x 8192", "gemm_hopper", "Square GEMMs, TFLOP/s",
        ("bfloat16 NT", "8192", "8192", "8192"), "cuBLAS", _SUSTAINED, "TFLOP/s",
    ),
    Speed(
        "GEMM, fp8 (e4m3), 8192 x 8192 x 8192", "gemm_hopper", "Square GEMMs, TFLOP/s",
        ("float8_e4m3fn, f32 accumulation NT", "8192", "8192", "8192"), "cuBLAS", _SUSTAINED, "TFLOP/s",
    ),
    Speed(
        "attention, f16, causal, 4 x 8192, 16 heads, head_dim 128", "attention_hopper", "Sustained",
        ("float16", "4 x 8192, 16 heads, head_dim 128", "causal"), "cuDNN", ("peer TFLOP/s", "Kiln TFLOP/s"), "TFLOP/s",
    ),
    Speed(
        "attention backward, bf16, causal, same shape", "attention_backward",
        "Bursts and sustained, TFLOP/s (of cuDNN)", ("bfloat16", "128", "8192", "causal"), "cuDNN",
        ("cuDNN sustained", "Kiln sustained"), "TFLOP/s",
    ),
    Speed(
        "MLA decode, bf16, batch 128, 16 heads, 8192 tokens", "decode", "MLA decode, page size 64",
        ("128", "1", "16", "8192"), "PyTorch", ("PyTorch us", "Kiln us"), "us",
    ),
    Speed(
        "softmax, bf16, 16384 x 8192", "memory_bound", "Row-wise kernels, forward",
        ("softmax", "16384", "8192", "bfloat16"), "PyTorch", ("torch us", "Kiln us"), "us",
    ),
)  # fmt: skip


class Shown(NamedTuple):
    """A kernel of the gallery: its name, what it does, its source, the page that tells how to call it, and a speed."""

    title: str
    text: str
    source: str
    page: str
    speed: Speed


_KERNELS = "../src/kiln/kernels"
GALLERY = (
    Shown(
        "GEMM", "TMA, WGMMA, two consumer warpgroups, persistent CTAs; any epilogue you write as a function.",
        f"{_KERNELS}/impl/gemm/sm90.py", "kernels.md#gemm", SPEEDS[0],
    ),
    Shown(
        "Grouped GEMM", "Experts of a mixture in one launch, with any number of rows each.",
        f"{_KERNELS}/impl/gemm/sm90_grouped.py", "kernels.md#grouped-gemm",
        Speed(
            "64 groups of 128 rows, bf16, N 4096, K 2048", "gemm_grouped", "Grouped GEMM, bfloat16, sustained",
            ("64", "128 uneven", "4096", "2048"), "PyTorch", ("PyTorch TFLOP/s", "Kiln TFLOP/s"), "TFLOP/s",
        ),
    ),
    Shown(
        "Attention", "One pass with online softmax, roles for warps, causal masks and windows, GQA, varlen.",
        f"{_KERNELS}/impl/attention/fwd/sm90.py", "kernels.md#attention", SPEEDS[2],
    ),
    Shown(
        "Attention backward", "dQ, dK and dV of every mask that the forward has.",
        f"{_KERNELS}/impl/attention/bwd/sm90.py", "kernels.md#attention", SPEEDS[3],
    ),
    Shown(
        "MLA decode", "Multi-head latent attention on a paged cache of compressed KV.",
        f"{_KERNELS}/impl/mla/sm90.py", "kernels.md#mla", SPEEDS[4],
    ),
    Shown(
        "Softmax", "Rows in registers, one read and one write of each element.",
        f"{_KERNELS}/impl/rowwise/softmax_and_norms.py", "kernels.md#row-wise-kernels", SPEEDS[5],
    ),
    Shown(
        "RMSNorm", "The same skeleton as softmax, with a weight, a residual or fp8 output on request.",
        f"{_KERNELS}/impl/rowwise/softmax_and_norms.py", "kernels.md#row-wise-kernels",
        Speed(
            "RMSNorm, bf16, 16384 x 8192", "memory_bound", "Row-wise kernels, forward",
            ("rms_norm", "16384", "8192", "bfloat16"), "PyTorch", ("torch us", "Kiln us"), "us",
        ),
    ),
)  # fmt: skip
"""What the gallery shows."""


def _results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Measured(NamedTuple):
    """The numbers of a row, how many times as fast Kiln is, and the day."""

    peer: float
    ours: float
    ratio: float
    date: str


def measured(speed: Speed) -> Measured:
    """Return what the data say about a row."""
    page = _results().parse((ROOT / "docs" / "data" / f"{speed.page}.md").read_text())
    (found,) = [known for known in page.tables if known.title == speed.table]
    (row,) = [cells for cells in found.rows if cells[: len(speed.row)] == speed.row]
    peer, ours = (float(row[found.columns.index(column)].split(" ")[0]) for column in speed.columns)
    date, gpu = found.environment.split(", ")[:2]
    if gpu != "NVIDIA H200":
        raise ValueError(f"{speed.page}.md, {speed.table}: measured on {gpu}, the table says H200")
    return Measured(peer, ours, ours / peer if speed.unit == "TFLOP/s" else peer / ours, date)


def table(docs: str) -> str:
    """Return the table as Markdown, with links to the pages of `docs`/data."""
    lines = ["| on one H200 | peer | Kiln | | measured |", "|---|--:|--:|--:|---|"]
    for each in SPEEDS:
        found = measured(each)
        numbers = f"{each.peer} {found.peer:g}", f"{found.ours:g} {each.unit}", f"{found.ratio:.2f}x"
        lines.append(f"| {' | '.join([each.what, *numbers, f'[{found.date}]({docs}data/{each.page}.md)'])} |")
    return "\n".join(lines)


def page_text(name: str) -> str:
    """Return a page with its table as the data say."""
    text = (ROOT / name).read_text()
    between = re.compile(rf"(?<={re.escape(MARKS[0])}\n\n).*?(?=\n\n{re.escape(MARKS[1])})", re.DOTALL)
    if len(between.findall(text)) != 1:
        raise ValueError(f"{name} has no place for the table, between {MARKS[0]} and {MARKS[1]}")
    return between.sub(lambda _: table(PAGES[name]), text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say only whether the pages are current")
    check = parser.parse_args().check
    wrong = [name for name in PAGES if page_text(name) != (ROOT / name).read_text()]
    for name in wrong:
        if check:
            print(f"{name} is not what docs/data says: python tools/speeds.py", file=sys.stderr)
        else:
            (ROOT / name).write_text(page_text(name))
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
