"""The clock's predictions beside times of an H200 whose clock was held: kernels of the library and the steps of examples/hopper.

    python benchmarks/clock.py measure [--clock 1305]     # needs a GPU, and an administrator
    python benchmarks/clock.py report [--only TEXT]       # needs none

`measure` writes data/clock_h200.jsonl; a row's name says the program and its shape.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kiln import cute, kernels
from kiln.base_dsl.target import target
from kiln.clock import sm, units
from kiln.clock.recording import Recording
from kiln.hardware import devices, driver, nvml, sass
from kiln.measure import clocks, measurement
from kiln.targets.nvidia import codegen
from kiln.testing import dry_run
from kiln.workbench.profile.static_profile import static_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).parent / "data" / "clock_h200.jsonl"
STEPS = ("step_2_gemm", "step_3_pipeline", "step_4_roles", "step_5_stores", "step_6_persistent")
CONFIGS = {
    "g1": kernels.Sm90GemmConfig((128, 256, 64), (2, 1), 4, 8, epi_stages=4),
    "g2": kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 4, 8),
    "g3": kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 6, 8, epi_stages=4),
    "g4": kernels.Sm90GemmConfig((256, 128, 64), (1, 1), 4, 8),
    "g5": kernels.Sm90GemmConfig((128, 256, 64), (1, 1), 2, 8),
    "g7": kernels.Sm90GemmConfig((128, 192, 64), (1, 1), 4, 8),
}
SHAPES = ((4096, 4096, 4096), (1024, 1024, 4096), (2048, 2048, 1024), (512, 4096, 4096))
LAUNCH_US = 1.9
"""What a launch costs besides its CTAs (`launches` of the units)."""


def names() -> Iterator[str]:
    """Yield the names of all rows."""
    yield from (f"{step} {size}" for size in (4096, 2048) for step in STEPS)
    yield from (f"gemm {config} {' '.join(map(str, shape))}" for shape in SHAPES for config in CONFIGS)
    yield from ("attention 2 4096 16 128 0", "attention 4 2048 16 64 1")
    yield from (f"{kernel} {shape}" for shape in ("8192 8192", "4096 1024") for kernel in ("rms_norm", "softmax"))


def call_of(name: str, device: str) -> Callable[[], Any]:
    """Return the call that a row's name says."""
    kind, *words = name.split()

    def data(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).half()

    if kind in STEPS:
        size = int(words[0])
        arguments = (*(data(size, size) for _ in range(3)), *([66] if kind == STEPS[-1] else []))
        gemm = importlib.import_module(kind).gemm
        if device == "cpu":
            return lambda: gemm(*arguments)
        compiled: Any = cute.compile(gemm, *arguments)
        return lambda: compiled(*arguments)
    if kind == "gemm":
        m, n, k = map(int, words[1:])
        a, b, out = data(m, k), data(k, n), data(m, n)
        return lambda: kernels.gemm(a, b, out=out, config=CONFIGS[words[0]])
    if kind == "attention":
        batch, tokens, heads, head_dim, causal = map(int, words)
        q, k, v = (data(batch, tokens, heads, head_dim) for _ in range(3))
        return lambda: kernels.flash_attention(q, k, v, causal=bool(causal))
    x, weight = data(*map(int, words)), data(int(words[1]))
    return (lambda: kernels.rms_norm(x, weight)) if kind == "rms_norm" else lambda: kernels.softmax(x)


def measure(mhz: int) -> None:
    """Time all rows on the current GPU, with its clock held."""
    gpu = nvml.Gpu(driver.uuid(driver.current_device()))
    with clocks.locked(gpu, mhz), ROWS.open("w") as file:
        for name in names():
            timed = measurement.measure(call_of(name, "cuda"), l2="warm", effort=measurement.BURST)
            row = {"kernel": name, "us": timed.us, "low": timed.low, "high": timed.high, "mhz": timed.clock_mhz}
            print(json.dumps(row), file=file, flush=True)
            print(f"{name:32} {timed.us:8.1f} us")


def predicted_us(call: Callable[[], object], rates: sm.Rates, mhz: float) -> float:
    """Return the predicted microseconds of a call on an H200."""
    with Recording(1) as recording:
        call()
    with target("nvidia"), dry_run() as launches:
        call()
    device = devices.device_of("sm_90a")
    cycles = 0.0
    for launch, dry in zip(recording.launches, launches, strict=True):
        code = sass.kernels(codegen.disassemble(dry.artifacts["cubin"], "-g -c -hex"))[dry.kernel]
        resident = static_profile([dry])[0].occupancy.blocks
        size = math.prod(dry.cluster)
        at_once = device.sm_count * resident // size
        clusters = math.prod(dry.grid) // size
        cycles += sm.predict(launch, code, recording.accesses, clusters, at_once, resident, rates).cycles
    return cycles / mhz + LAUNCH_US * len(launches)


def report(only: str) -> None:
    """Print predictions beside the recorded times."""
    rates = sm.Rates.measured(units.of("H200"))
    misses: list[float] = []
    for line in ROWS.read_text().splitlines():
        row = json.loads(line)
        if only in row["kernel"]:
            predicted = predicted_us(call_of(row["kernel"], "cpu"), rates, row["mhz"])
            misses.append(predicted / row["us"] - 1)
            print(f"{row['kernel']:32} measured {row['us']:8.1f} us, predicted {predicted:8.1f} us, {misses[-1]:+.0%}")
    if not misses:
        sys.exit(f"no row's name has {only!r}")
    print(f"mean absolute error {statistics.mean(map(abs, misses)):.1%} of {len(misses)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "report"))
    parser.add_argument("--clock", type=int, default=1305)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "examples" / "hopper"))
    if options.what == "measure":
        measure(options.clock)
    else:
        report(options.only)


if __name__ == "__main__":
    main()
