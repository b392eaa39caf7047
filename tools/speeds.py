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
    peers: dict[str, str]
    """The column of each peer."""
    ours: str
    """Kiln's column."""
    unit: str


def _beside(what: str, table: str, row: tuple[str, ...], *peers: str) -> Speed:
    """Return a row of the page on which the library stands beside its strongest peers."""
    return Speed(what, "libraries", table, row, {name: f"{name} us" for name in peers}, "Kiln us", "us")


def _rows(what: str, *row: str) -> Speed:
    return _beside(what, "Memory-bound kernels", row, "PyTorch", "torch.compile", "QuACK*")


def _gemm(what: str, *row: str) -> Speed:
    return _beside(what, "GEMMs", row, "cuBLAS", "torch.compile", "QuACK*")


def _attention(what: str, *row: str) -> Speed:
    return _beside(what, "Attention", row, "cuDNN", "FlashAttention-3", "flash_attn.cute*", "FlashMLA")


SPEEDS = {
    "gemm": _gemm("GEMM, bf16, 8192 x 8192 x 8192", "gemm", "8192 x 8192 x 8192", "bfloat16"),
    "gemm few rows": _gemm("GEMM, bf16, 200 x 2560 x 9728", "gemm", "200 x 2560 x 9728", "bfloat16"),
    "gemm fp8": _gemm("GEMM, fp8 (e4m3), 8192 x 8192 x 8192", "gemm", "8192 x 8192 x 8192", "float8_e4m3fn"),
    "gemm 4096": _gemm("GEMM, bf16, 4096 x 4096 x 4096", "gemm", "4096 x 4096 x 4096", "bfloat16"),
    "gemm silu": _gemm("GEMM with SiLU, bf16, 8192 x 8192 x 8192", "gemm, silu", "8192 x 8192 x 8192"),
    "attention": _attention(
        "attention, bf16, causal, 4 x 8192, 16 heads, head_dim 128",
        "attention",
        "4 x 8192, 16 heads, head_dim 128, causal",
    ),
    "attention backward full": _attention(
        "attention backward, same shape without a mask", "attention backward", "4 x 8192, 16 heads, head_dim 128, full"
    ),
    "attention backward": _attention(
        "attention backward, same shape, causal", "attention backward", "4 x 8192, 16 heads, head_dim 128, causal"
    ),
    "attention backward 64": _attention(
        "attention backward, 32 heads, head_dim 64", "attention backward", "4 x 8192, 32 heads, head_dim 64, causal"
    ),
    "decode": _attention(
        "decode, bf16, batch 16, 32 heads on 8, 16384 tokens",
        "decode",
        "16 x 16384, 1 query, 32 heads on 8, head_dim 128",
    ),
    "mla": _attention(
        "MLA decode, bf16, batch 128, 16 heads, 8192 tokens", "MLA decode", "128 x 8192, 1 query, 16 heads"
    ),
    "mla 128": _attention("MLA decode, 128 heads, same cache", "MLA decode", "128 x 8192, 1 query, 128 heads"),
    "softmax": _rows("softmax, bf16, 16384 x 32768", "softmax", "16384 x 32768"),
    "rms_norm": _rows("RMSNorm, bf16, 32768 x 4096", "rms_norm", "32768 x 4096"),
    "cross_entropy": _rows("cross-entropy, bf16, 8192 x 131072", "cross_entropy", "8192 x 131072"),
    "topk": _rows("softmax and top-8, bf16, 65536 x 256", "topk, softmax, k = 8", "65536 x 256"),
}
"""What the table shows, by a short name."""


class Shown(NamedTuple):
    """A kernel of the gallery: its name, what it does, its picture and a description of that, its source, a speed, and
    the page that tells how to call it. Examples have no such page."""

    title: str
    text: str
    picture: str
    alt: str
    source: str
    speed: Speed
    page: str = ""


def _example(what: str, row: tuple[str, ...], peer: str = "PyTorch") -> Speed:
    return Speed(
        what,
        "gallery",
        "Memory-bound examples",
        row,
        {peer: "torch us", "torch.compile": "torch.compile us"},
        "Kiln us",
        "us",
    )


_KERNELS = "../src/kiln/kernels"
GALLERY = (
    Shown(
        "Softmax",
        "Rows in registers, one read and one write of each element.",
        "softmax",
        "A row is read once, its elements stay in the registers of the lanes, shuffles find the maximum and the sum, "
        "and the result is written once.",
        f"{_KERNELS}/impl/rowwise/softmax_and_norms.py",
        SPEEDS["softmax"],
        "kernels.md#row-wise-kernels",
    ),
    Shown(
        "RMSNorm",
        "The same skeleton as softmax, with a weight, a residual or fp8 output on request.",
        "rms_norm",
        "A row is read once into the registers of the lanes; the mean of its squares gives a factor, and the scaled "
        "row is written once.",
        f"{_KERNELS}/impl/rowwise/softmax_and_norms.py",
        SPEEDS["rms_norm"],
        "kernels.md#row-wise-kernels",
    ),
    Shown(
        "GEMM",
        "TMA, WGMMA, two consumer warpgroups, persistent CTAs; any epilogue you write as a function.",
        "gemm",
        "Matrices A, B and D cut into tiles. For one tile of D, the tiles of one row of A and one column of B are "
        "coloured.",
        f"{_KERNELS}/impl/gemm/sm90.py",
        SPEEDS["gemm"],
        "kernels.md#gemm",
    ),
    Shown(
        "Grouped GEMM",
        "Experts of a mixture in one launch, with any number of rows each.",
        "grouped_gemm",
        "Three experts with one, three and two rows of tiles. The tiles are numbered from 0 to 29 across all experts.",
        f"{_KERNELS}/impl/gemm/sm90_grouped.py",
        Speed(
            "64 groups of 128 rows, bf16, N 4096, K 2048",
            "gemm_grouped",
            "Grouped GEMM, bfloat16, sustained",
            ("64", "128 uneven", "4096", "2048"),
            {"CUTLASS (PyTorch)": "PyTorch TFLOP/s"},
            "Kiln TFLOP/s",
            "TFLOP/s",
        ),
        "kernels.md#grouped-gemm",
    ),
    Shown(
        "Attention",
        "One pass with online softmax, roles for warps, causal masks and windows, GQA, varlen.",
        "attention",
        "A tile of Q stays while tiles of K and V stream past. For each row a maximum, a sum and the output so far are "
        "kept, and rescaled when the maximum grows.",
        f"{_KERNELS}/impl/attention/fwd/sm90.py",
        SPEEDS["attention"],
        "kernels.md#attention",
    ),
    Shown(
        "Attention backward",
        "dQ, dK and dV of every mask that the forward has.",
        "attention_backward",
        "A tile of K and V stays while tiles of Q and dO stream past. dK and dV are kept in registers, dQ is added up "
        "in memory.",
        f"{_KERNELS}/impl/attention/bwd/sm90.py",
        SPEEDS["attention backward"],
        "kernels.md#attention",
    ),
    Shown(
        "MLA decode",
        "Multi-head latent attention on a paged cache of compressed KV.",
        "mla",
        "Eight heads point at one row of compressed KV, an entry for each token. It is loaded once and read by all heads.",
        f"{_KERNELS}/impl/mla/sm90.py",
        SPEEDS["mla"],
        "kernels.md#mla",
    ),
    Shown(
        "Convolution",
        "An implicit GEMM with `mma.sync`: im2col is a layout, and only padding is predicated.",
        "convolution",
        "Two overlapping patches of an image, three by three pixels each, become two rows of the matrix A. The pixels "
        "that both patches have are marked in both rows.",
        "../examples/convolution.py",
        Speed(
            "64 images of 14 x 14 x 256, f16, 256 filters of 3 x 3",
            "gallery",
            "Convolution, float16",
            ("64 x 14 x 14 x 256", "256 x 3 x 3 x 256"),
            {"cuDNN": "torch TFLOP/s"},
            "Kiln TFLOP/s",
            "TFLOP/s",
        ),
    ),
    Shown(
        "Transpose",
        "16-byte accesses on both sides of a swizzled tile in shared memory.",
        "transpose",
        "Two tiles of eight by eight vectors, each with the group of banks it lies in. Row-major, all vectors of a "
        "column lie in the same group. With the swizzle they lie in eight different ones.",
        "../examples/transpose.py",
        _example("transpose, f32, 8192 x 8192", ("transpose", "8192 x 8192", "float32")),
    ),
    Shown(
        "Histogram",
        "Private bins for each lane, each in a bank of its own, whatever the data.",
        "histogram",
        "A table of counts with a row for each bin and a column for each lane. The sum of each row is the count of the "
        "bin.",
        "../examples/histogram.py",
        _example("histogram, f32, 268435456 elements, 256 bins", ("histogram", "268435456, 256 bins", "float32")),
    ),
    Shown(
        "Scan",
        "Inclusive or exclusive prefix sums in one pass, by decoupled look-back.",
        "scan",
        "Four tiles of three numbers. Tiles 0 and 1 have published prefixes, tile 2 only its sum. Tile 3 adds the sum "
        "of tile 2 and the prefix of tile 1, and stops there.",
        "../examples/scan.py",
        _example("prefix sums, int32, 268435456 elements", ("scan", "268435456", "int32"), "CUB (PyTorch)"),
    ),
)
"""What the gallery shows."""


def _results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Measured(NamedTuple):
    """The numbers of a row, how many times as fast as the best peer Kiln is, and the day."""

    peers: dict[str, float]
    ours: float
    best: str
    ratio: float
    date: str


def measured(speed: Speed) -> Measured | None:
    """Return what the data say about a row; None if its table has not been measured yet."""
    page = _results().parse((ROOT / "docs" / "data" / f"{speed.page}.md").read_text())
    found = next((known for known in page.tables if known.title == speed.table), None)
    if found is None:
        return None
    row = next((cells for cells in found.rows if cells[: len(speed.row)] == speed.row), None)
    if row is None:
        raise ValueError(f"{speed.page}.md, {speed.table}: no row {', '.join(speed.row)}")
    cells = {column: cell.split(" ")[0] for column, cell in zip(found.columns, row)}  # "-" or "- (reason)": no peer
    peers = {name: float(cells[column]) for name, column in speed.peers.items() if cells[column] != "-"}
    if not peers:
        raise ValueError(f"{speed.page}.md, {speed.table}: {', '.join(speed.row)} has no peer")
    ours, more_is_better = float(cells[speed.ours]), speed.unit == "TFLOP/s"
    best = (max if more_is_better else min)(peers, key=peers.__getitem__)
    date, gpu = found.environment.split(", ")[:2]
    if gpu != "NVIDIA H200":
        raise ValueError(f"{speed.page}.md, {speed.table}: measured on {gpu}, the table says H200")
    ratio = ours / peers[best] if more_is_better else peers[best] / ours
    return Measured(peers, ours, best, ratio, date)


def static(title: str) -> str:
    """Return what the compiler and the CPU target say about an example, in words; nothing about kernels of the library."""
    page = _results().parse((ROOT / "docs" / "data" / "gallery.md").read_text())
    (found,) = [known for known in page.tables if known.title.startswith("Static profile")]
    for row in found.rows:
        cells = dict(zip(found.columns, row))
        if cells["example"] == title.lower():
            stores = "" if cells["bytes stored"] == "-" else f"{cells['bytes stored']}-byte stores, "
            return (
                f"{cells['case']}: {cells['registers']} registers, {cells['spilled bytes']} bytes spilled, "
                f"{cells['bytes loaded']}-byte loads, {stores}{cells['bank conflicts']} bank conflicts"
            )
    return ""


def table(docs: str) -> str:
    """Return the table as Markdown, and a link to its page in `docs`/data."""
    lines = ["| microseconds, on one H200 | peers | Kiln | of the best peer |", "|---|--:|--:|--:|"]
    runs: set[tuple[str, str]] = set()
    for each in SPEEDS.values():
        found = measured(each)
        if found is None:
            raise ValueError(f"{each.page}.md has no table {each.table}")
        runs.add((each.page, found.date))
        peers = ", ".join(f"{name} {value:g}" for name, value in found.peers.items())
        lines.append(f"| {each.what} | {peers} | {found.ours:g} | {found.ratio:.2f}x |")
    if len(runs) > 1:
        raise ValueError(f"the table is of one run, but its rows are of {sorted(runs)}")
    ((page, date),) = runs
    return "\n".join([*lines, "", f"Measured on {date}: [every row, and the versions]({docs}data/{page}.md)."])


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
