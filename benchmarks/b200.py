"""Kernels with tcgen05 on a GPU that has it: all values first, then times beside the predictions, and what would make these fit.

    python benchmarks/b200.py                  # `make test STAGE=b200`: an hour of a B200, B300 or Thor; the report is build/b200.md
    python benchmarks/b200.py --only groups    # cases with a text in their name
    python benchmarks/b200.py --seconds 1      # at most, for each case
    python benchmarks/b200.py --small          # small shapes and few tests, also without a GPU: only to see that all of it runs

On another GPU the library chooses its own kernels, and the report says what they are predicted and take. `--save` writes
docs/data/b200.md instead. On a B200 there are published speeds of it beside the measured ones, with their sources.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import ROOT, Page, Recorded, Table, page_text

import kiln
from kiln import kernels
from kiln.kernels.tuned import predicted
from kiln.measure.measurement import NORMAL, Effort, measure
from kiln.measure.statistics import Stopping

TESTS = ("tests/gpu/test_gpu_blackwell.py", "tests/gpu/test_gpu_blackwell_gemm.py", "tests/gpu/test_gpu_fused_rows.py")
FEW_TESTS = ("tests/kernels/impl/gemm/test_gemm_sm100.py::test_an_explanation_says_that_times_are_predicted",)
CHECKED_ROWS = 64
"""Rows of a result that are compared with f64: at least 64, and one of every 64."""
BLACKWELL = (10, 11)
"""Major compute capabilities of GPUs with tensor memory."""
FIGURES = {
    "tensor cores": ("tensor_share", 1),
    "shared memory": ("smem_bytes_per_cycle", 1),
    "L2 cache": ("l2_bytes_per_cycle", 1),
    "memory": ("dram_share", 1),
    "stage": ("stage_cycles", -1),
    "DRAM latency": ("dram_latency_us", -1),
}
"""The figure of `kernels/tuned/b200.json` that says how long a unit takes; whether a larger one is a shorter time."""


class Call(NamedTuple):
    """A call of the library: its work, and how its rows are checked."""

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    flops: float
    wrong: Callable[[Any], float]
    """Of a result: its largest error over what rounding may do."""


class Published(NamedTuple):
    """The fastest kernel that anybody published for a shape, on a B200."""

    tflops: int
    source: str


class Case(NamedTuple):
    """A shape that is measured: M, N, K, or of groups their number, rows of each, N and K."""

    kind: str
    shape: tuple[int, ...]
    published: Published | None = None

    @property
    def name(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.shape))}"


TK = "ThunderKittens, README"
CUBLAS = "cuBLAS, vllm-project/vllm#19566"
CUTLASS = "CUTLASS, vllm-project/vllm#19566"
DEEPGEMM = "DeepGEMM, deepseek-ai/DeepGEMM#348"
CUBLASLT = "cuBLASLt 13.3, deepseek-ai/DeepGEMM#348"
CASES = [
    Case("bf16", (4096, 4096, 4096), Published(1540, TK)),
    Case("bf16", (8192, 8192, 8192)),
    Case("bf16", (16384, 4096, 4096)),
    Case("bf16", (2048, 4096, 4096), Published(1444, CUBLAS)),
    Case("bf16", (1024, 4096, 4096), Published(1363, CUBLAS)),
    Case("bf16", (512, 4096, 4096), Published(1336, CUBLAS)),
    Case("bf16", (8192, 8192, 512)),
    Case("bf16", (64, 7168, 7168)),
    Case("bf16", (8, 28672, 4096)),
    Case("tf32", (4096, 4096, 4096)),
    Case("e4m3", (1024, 4096, 4096), Published(2354, CUTLASS)),
    Case("e4m3", (16384, 4096, 4096)),
    Case("i8", (4096, 4096, 4096)),
    Case("mxfp8", (8192, 8192, 8192)),
    Case("mxfp8", (1024, 7168, 2048)),
    Case("mxfp4", (8192, 8192, 8192), Published(5702, DEEPGEMM)),
    Case("mxfp4", (4096, 4096, 7168), Published(5332, DEEPGEMM)),
    Case("mxfp4", (1024, 7168, 2048), Published(2056, DEEPGEMM)),
    Case("mxfp4", (512, 2048, 7168), Published(1422, CUBLASLT)),
    Case("nvfp4", (8192, 8192, 8192)),
    Case("nvfp4", (4096, 4096, 7168)),
    Case("bf16 groups", (32, 256, 4096, 7168)),
    Case("bf16 groups", (8, 2048, 4096, 7168)),
    Case("e4m3 groups", (64, 16, 4096, 7168)),
    Case("mxfp8 groups", (32, 256, 4096, 7168)),
    Case("nvfp4 groups", (32, 256, 4096, 7168)),
    Case("quantize mxfp8", (16384, 8192)),
    Case("quantize nvfp4", (16384, 8192)),
    Case("rms_norm nvfp4", (16384, 8192)),
]
SMALL = [
    Case("bf16", (128, 64, 64)),
    Case("tf32", (128, 64, 64)),
    Case("mxfp8", (128, 128, 128)),
    Case("bf16 groups", (2, 8, 64, 64)),
    Case("quantize mxfp8", (8, 64)),
    Case("rms_norm nvfp4", (8, 64)),
]
FORMATS = {"mxfp8": (32, 448.0, -6, 3), "mxfp4": (32, 6.0, 0, 1), "nvfp4": (16, 6.0, 0, 1)}
"""Of formats of blocks: elements in one, the largest number of their type, its least exponent, its bits of mantissa."""
SLACK = 2.0**-18
"""What f32 may add to the rounding of elements, relative to them."""
TYPES = {"bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn, "i8": torch.int8}


def operand(kind: str, *shape: int, device: str) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return normal data of a kind contiguous in K, its scale factors or None, and a function of rows of it: f64."""
    if kind in ("mxfp8", "mxfp4", "nvfp4"):
        source = torch.randn(*shape, device=device, dtype=torch.bfloat16)
        data, scales = kernels.quantize(source, kind, scale_layout="rows")
        vector = 16 if kind == "nvfp4" else 32
        return data, scales, lambda rows: wide(data[rows], scales[rows], vector)
    if kind == "tf32":
        data = as_tf32(torch.randn(*shape, device=device))
    elif kind == "i8":
        data = torch.randint(-9, 10, shape, device=device, dtype=torch.int8)
    else:
        data = torch.randn(*shape, device=device, dtype=torch.bfloat16).to(TYPES[kind])
    return data, None, lambda rows: data[rows].double()


def as_tf32(x: Any) -> Any:
    """Return f32 rounded to 10 bits of mantissa: how a kernel rounds it then does not matter."""
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def some_rows(count: int, least: int, device: str) -> Any:
    """Return numbers of rows in all parts of a matrix: a random one of each part, and the first and the last."""
    parts = min(count, max(least, -(-count // CHECKED_ROWS)))
    edges = torch.arange(parts + 1, device=device) * count // parts
    inside = (torch.rand(parts, device=device) * (edges[1:] - edges[:-1])).long()
    rows = (edges[:-1] + inside).minimum(edges[1:] - 1)
    rows[0], rows[-1] = 0, count - 1
    return rows


def wide(data: Any, scales: Any, vector: int) -> Any:
    """Return what quantised rows stand for, in f64."""
    if data.dtype is torch.uint8:
        steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=data.device, dtype=torch.float64)
        codes = torch.stack([data & 15, data >> 4], -1).flatten(-2).long()
        data = torch.where(codes > 7, -1.0, 1.0) * steps[codes & 7]
    return data.double() * scales.float().double().repeat_interleave(vector, -1)


def excess(got: Any, left: Any, right: Any) -> float:
    """Return the largest error of rows of a GEMM, over what rounding of accumulators and results may do."""
    wanted = left @ right.mT
    step = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    allowed = step * wanted.abs() + 2.0**-16 * (left.abs() @ right.mT.abs()) + 1e-9
    return float(((got.double() - wanted).abs() / allowed).max())


def gemm(case: Case, device: str) -> Call:
    """Return the call of a GEMM."""
    m, n, k = case.shape
    a, of_a, left = operand(case.kind, m, k, device=device)
    b, of_b, right = operand(case.kind, n, k, device=device)
    options: dict[str, Any] = {} if of_a is None else {"scale_a": of_a, "scale_b": of_b.mT, "out_dtype": torch.bfloat16}
    if case.kind == "e4m3":
        options["out_dtype"] = torch.bfloat16
    if case.kind == "tf32":
        options["precision"] = "tf32"
    rows = some_rows(m, CHECKED_ROWS, device)
    return Call(
        kernels.gemm, (a, b.mT), options, 2.0 * m * n * k, lambda got: excess(got[rows], left(rows), right(slice(None)))
    )


def groups(case: Case, device: str) -> Call:
    """Return the call of a grouped GEMM with as many rows in each group; rows of all are checked."""
    kind = case.kind.partition(" ")[0]
    count, m, n, k = case.shape
    a, of_a, left = operand(kind, count * m, k, device=device)
    b, of_b, right = operand(kind, count, n, k, device=device)
    ends = torch.arange(1, count + 1, device=device, dtype=torch.int32) * m
    options: dict[str, Any] = {"offsets": ends}
    if of_a is not None:
        options |= {"scale_a": of_a, "scale_b": of_b.mT}
    if kind != "bf16":
        options["out_dtype"] = torch.bfloat16
    rows = some_rows(m, -(-CHECKED_ROWS // count), device)

    def wrong(got: Any) -> float:
        errors = [excess(got[group * m + rows], left(group * m + rows), right(group)) for group in range(count)]
        return float(torch.tensor(errors).max())  # NaN, if one is

    return Call(kernels.grouped_gemm, (a, b.mT), options, 2.0 * count * m * n * k, wrong)


def quantised_excess(data: Any, scales: Any, source: Any, name: str) -> float:
    """Return the largest error of quantised rows, over half a step of their elements, or of their scale factors.

    With e8m0 these are the least powers of two with which nothing saturates, those of nvfp4 a sixth of the largest
    magnitude of a block, within half a step of e4m3.
    """
    vector, largest_element, least_exponent, mantissa = FORMATS[name]
    own = scales.float().double()
    largest = source.abs().unflatten(-1, (-1, vector)).amax(-1)
    if name == "nvfp4":
        ideal = largest / largest_element
        of_scales = (own - ideal).abs() / (2.0**-4 * ideal + 2.0**-10)
    else:
        used = largest / (own * largest_element)
        of_scales = torch.maximum(used, 0.5 / used)
    own = own.repeat_interleave(vector, -1)
    exponent = (source.abs() / own).log2().floor().clamp(min=least_exponent)
    half_step = 0.5 * torch.exp2(exponent - mantissa) * own
    of_elements = (wide(data, scales, vector) - source).abs() / (half_step + SLACK * source.abs())
    return float(torch.maximum(of_scales.max() / (1 + SLACK), of_elements.max()))


def quantised_rows(case: Case, device: str) -> Call:
    """Return the call that quantises rows."""
    function, _, name = case.kind.partition(" ")
    x = torch.randn(*case.shape, device=device, dtype=torch.bfloat16)
    rows = some_rows(case.shape[0], CHECKED_ROWS, device)

    def wrong(got: Any) -> float:
        data, scales = got
        source = x[rows].double()
        if function == "rms_norm":
            source = source * (source.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return quantised_excess(data[rows], scales[rows], source, name)

    options = {"scale_layout": "rows"}
    if function == "rms_norm":
        return Call(kernels.rms_norm, (x,), {"quantize": name, **options}, 0.0, wrong)
    return Call(kernels.quantize, (x, name), options, 0.0, wrong)


def call_of(case: Case, device: str) -> Call:
    """Return the call of a case."""
    if case.kind.endswith("groups"):
        return groups(case, device)
    return quantised_rows(case, device) if " " in case.kind else gemm(case, device)


def run_case(
    case: Case, device: str, effort: Effort, misses: dict[str, list[float]], kinds: dict[str, list[float]]
) -> tuple[Any, ...]:
    """Check and time a case; note by how much its prediction misses."""
    call = call_of(case, device)
    said = kernels.explain(call.function, *call.arguments, **call.options)
    chosen = said.choices[0]
    wrong = call.wrong(call.function(*call.arguments, **call.options))
    taken = measure(lambda: call.function(*call.arguments, **call.options), effort=effort)
    miss = taken.us / said.roofline.us
    unit = max(said.roofline.units, key=said.roofline.units.__getitem__)
    if wrong <= 1.0:  # else its time says nothing
        kinds[case.kind].append(miss)
        if type(chosen.implementation).predicted and said.roofline.units[unit] > said.roofline.us / 2:
            misses[unit].append(miss)
    speed = f"{call.flops / taken.us / 1e6:.0f}" if call.flops else None
    return (
        case.name,
        type(chosen.implementation).__name__,
        f"{said.roofline.us:.1f}",
        f"{max(said.bounds.values()):.1f}",
        f"{taken.us:.1f} [{taken.low:.1f}, {taken.high:.1f}]",
        f"{miss:.2f}",
        speed,
        "right" if wrong <= 1.0 else f"WRONG by {wrong:.1f}",
    )


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def run_tests(tests: tuple[str, ...], table: Table, must_run: bool) -> bool:
    """Run tests, add what pytest says at the end, and return whether nothing failed; not all may be skipped if they
    must run."""
    whole = True
    for path in tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", path], cwd=ROOT, capture_output=True, text=True, check=False
        )
        last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
        table.add(path.partition("::")[0], re.sub(r" in [\d.]+s.*", "", last.strip("= ")))
        whole &= done.returncode == 0 and (not must_run or re.search(r"\d+ passed", last) is not None)
    return whole


def fitted(misses: dict[str, list[float]], table: Table) -> None:
    """Add the figures with which predictions that one unit decides would be right in the mean."""
    known = predicted("gemm_sm100")
    for unit, ratios in sorted(misses.items()):
        name, sign = FIGURES.get(unit, (None, 1))
        value = known.get(name) if name else None
        fit = None if value is None else f"{value / mean(ratios) ** sign:.3g}"
        table.add(unit, len(ratios), f"{mean(ratios):.2f}", name, value, fit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--seconds", type=float, default=3.0, help="at most, for each case")
    parser.add_argument("--small", action="store_true", help="small shapes and few tests, also without a GPU")
    parser.add_argument("--save", action="store_true", help="write docs/data/b200.md")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "b200.md", help="the report")
    given = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if not has_gpu and not given.small:
        parser.error("there is no GPU: --small runs small shapes on the CPU target")
    return report(given, "cuda" if has_gpu else "cpu")


def report(given: argparse.Namespace, device: str) -> int:
    """Run tests and cases, write the report, and return 1 if a value is wrong."""
    values = Table("Values", ("tests", "result"))
    columns = ["case", "kernel", "predicted us", "bound us", "measured us", "measured / predicted", "TFLOP/s", "values"]
    on_b200 = device != "cpu" and "B200" in torch.cuda.get_device_name()
    times = Table("Times", (*columns, "published TFLOP/s") if on_b200 else tuple(columns))
    by_kind = Table("Predictions by kind", ("kind", "cases", "measured / predicted"))
    units = Table("Figures", ("unit that decides", "cases", "measured / predicted", "figure", "now", "fits with"))
    misses: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, list[float]] = defaultdict(list)
    blackwell = device != "cpu" and torch.cuda.get_device_capability()[0] in BLACKWELL
    whole = run_tests(FEW_TESTS if given.small else TESTS, values, must_run=blackwell)
    effort = NORMAL._replace(stopping=Stopping(0.02, 5, 0.0, given.seconds), warmup=min(2.0, given.seconds))
    if given.small:
        effort = effort._replace(calls=1, warmup=0.0)
    if device == "cpu":
        Table.machine = "the CPU target, whose times say nothing of a GPU"
    with kiln.target("cpu" if device == "cpu" else "nvidia"):
        for case in SMALL if given.small else CASES:
            if given.only in case.name:
                try:
                    row = run_case(case, device, effort, misses, kinds)
                except Exception as e:  # the other cases still say something
                    row = (case.name, *[None] * 6, f"{type(e).__name__}: {str(e).partition(chr(10))[0]}")
                whole &= row[-1] == "right"
                known = f"{case.published.tflops} ({case.published.source})" if case.published else None
                times.add(*row, *([known] if on_b200 else []))
    for kind, ratios in kinds.items():
        by_kind.add(kind, len(ratios), f"{mean(ratios):.2f}")
    if device != "cpu":
        fitted(misses, units)
    page = Page(__file__, "Kernels with tcgen05 beside their predictions", values, times, by_kind, units)
    if given.save:
        page.finish(save=True)
    else:
        shown: list[Recorded | None] = [table.recorded(None) for table in page.tables]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page_text(page.program.relative_to(ROOT), page.title, [x for x in shown if x]))
        print(f"\n{given.out} is written")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
