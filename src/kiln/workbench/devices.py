"""`kiln devices`: shows known GPUs, measures what this machine's reach, and locks their clocks.

Vendors' numbers are in `kiln/hardware/devices.json` and, if a project has it, `conf/devices.json`; `kiln devices
measure` keeps what a GPU of this machine reaches in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.base_dsl import cache_folder, packages
from kiln.clock.calibration.run import calibrate
from kiln.hardware import current, devices, driver, features, nvml
from kiln.hardware.devices import Model
from kiln.measure import clocks, measurement
from kiln.measure.timers import GpuTimer

from .core import text
from .core.command_line import EXIT
from .core.options import Parser, flag, option

_ACTIONS = ("measure", "calibrate", "lock", "unlock")
_COLUMNS = (
    "device",
    "code",
    "SMs",
    "MHz",
    "smem KiB",
    "tmem KiB",
    "L2 MiB",
    "GB",
    "TB/s",
    "f32",
    "tf32",
    "f16",
    "f8",
    "f4",
    "i8",
)


def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    try:
        action, *words = args.what if args.what and args.what[0] in _ACTIONS else ["show", *args.what]
        return _show(words, args.json) if action == "show" else _act(action, words, args)
    except devices.DeviceTableError as wrong:
        print(wrong, file=sys.stderr)
        return EXIT.BAD_USE


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln devices",
        description="Show known GPUs, TFLOP/s dense; those of this machine are marked by their number. "
        "`measure` finds what this GPU reaches, `calibrate [MHZ]` how long its units take (minutes; the clock may be held), "
        "`lock [base|max|MHZ]` locks its clock, `unlock` unlocks it.",
    )
    actions = "NAME | measure | calibrate | lock | unlock"
    parser.add_argument("what", nargs="*", metavar=actions, help="devices to show, or what to do")
    option(parser, "--gpu N", "the number of a GPU of this machine (0)", type=int, default=0)
    flag(parser, "--json", "print JSON")
    return parser


# --- showing ---------------------------------------------------------------------------------------------------------


def here() -> dict[int, str]:
    """Return what the driver calls this machine's GPUs, by number."""
    return {number: driver.device_name(number) for number in range(driver.device_count())} if driver.available() else {}


def _show(names: list[str], as_json: bool) -> int:
    table = devices.table()
    present = here()
    chosen = list(table.values())
    if names:
        by_name = {name: devices.model_of(name) for name in names}
        for name, model in by_name.items():
            if model is None:
                near = devices.near_names(name)
                meant = "did you mean " + " or ".join(near) + "?" if near else "there are: " + ", ".join(table)
                print(f"no device {name!r} is known; {meant}", file=sys.stderr)
                return EXIT.BAD_USE
        chosen = [model for model in by_name.values() if model is not None]
    models = {number: devices.model_of(name) for number, name in present.items()}
    marks = {model.name: number for number, model in reversed(models.items()) if model}
    if as_json:
        rows = [_as_json(model) | {"here": model.name in marks} for model in chosen]
        print(json.dumps({"devices": rows, "here": [_own(number, name) for number, name in present.items()]}, indent=2))
        return EXIT.GOOD
    print("\n".join(text.table([_COLUMNS, *(_row(model, marks.get(model.name)) for model in chosen)], (0, 1))))
    for number, name in present.items():
        own = _own(number, name)
        note = "" if own["model"] else f" It is not in the table: a row for it can stand in {devices.PROJECT_TABLE}."
        said = in_words(own["reached"])
        print(f"*{number} {name}: {said or 'not measured yet: kiln devices measure'}.{note}")
    return EXIT.GOOD


def in_words(reached: Mapping[str, object]) -> str:
    """Return what was measured of a GPU in a line; empty if nothing was."""
    return ", ".join(f"{what} {value:.4g}" for what, value in reached.items() if isinstance(value, float))


def _as_json(model: Model) -> dict[str, Any]:
    limits = model.generation
    return model._asdict() | {
        "registers": limits.registers,
        "smem_per_sm": limits.smem,
        "smem_per_block": limits.smem_per_block,
        "threads_per_sm": limits.threads,
        "threads_per_block": limits.threads_per_block,
        "blocks_per_sm": limits.blocks,
        "cluster": limits.cluster,
        "tmem_columns": limits.tmem_columns,
    }


def _own(number: int, name: str) -> dict[str, Any]:
    model = devices.model_of(name)
    return {"number": number, "name": name, "model": model and model.name, "reached": ceilings(driver.uuid(number))}


def _row(model: Model, mark: int | None) -> list[str]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:g}"

    peaks = [number(model.tflops.get(name)) for name in _COLUMNS[_COLUMNS.index("f32") :]]
    bandwidth = None if model.bandwidth_gbs is None else round(model.bandwidth_gbs / 1e3, 2)
    return [
        model.name + (f" *{mark}" if mark is not None else ""),
        ", ".join(model.architectures),
        number(model.sm_count),
        number(model.clock_mhz),
        number(model.generation.smem >> 10),
        number(model.generation.tmem >> 10 or None),
        number(model.l2_mib),
        number(model.memory_gb),
        number(bandwidth),
        *peaks,
    ]


# --- what a GPU reaches ----------------------------------------------------------------------------------------------


def _file(uuid: str) -> Path | None:
    folder = cache_folder.directory()
    return Path(folder) / "devices" / f"{uuid}.json" if folder else None


def ceilings(uuid: str) -> dict[str, Any]:
    """Return what was measured on a GPU, or {}: TB/s of a copy, TFLOP/s of GEMMs by instruction and type."""
    file = _file(uuid)
    try:
        return json.loads(file.read_text()) if file else {}
    except (OSError, ValueError):
        return {}


def _keep(uuid: str, ceilings: dict[str, Any]) -> None:
    file = _file(uuid)
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(ceilings, indent=2) + "\n")


def measure_ceilings() -> dict[str, Any]:
    """Measure the copy of a GiB, and a GEMM with each MMA instruction, in bursts and on normally distributed data."""
    timer = GpuTimer.of_current_device()
    size = 1 << 30
    memory = [driver.Memory(size) for _ in range(2)]

    def by_kernel() -> None:
        timer.kernels.copy(memory[0].address, memory[1].address, size, timer.stream())

    def by_driver() -> None:
        driver.copy_memory(memory[1].address, memory[0].address, size, timer.stream())

    def us(call: Callable[[], object], l2: str = "warm") -> float:
        return measurement.measure(call, l2=l2, effort=measurement.BURST, clock=timer).us

    ceilings: dict[str, Any] = {"copy TB/s": 2 * size / min(us(by_kernel, "cold"), us(by_driver, "cold")) / 1e6}
    memory.clear()
    for name, (call, flops) in _gemms().items():
        ceilings[f"{name} TFLOP/s"] = flops / us(call) / 1e6
    return ceilings | {"name": driver.device_name(timer.number), "measured": time.strftime("%Y-%m-%d")}


def _gemms(n: int = 8192) -> dict[str, tuple[Callable[[], Any], float]]:
    """Return GEMMs of the kernel library, with their FLOPs; none without PyTorch."""
    try:
        torch = packages.load("torch")
    except ImportError:
        return {}
    # The kernel library takes 250 ms to load, and only `kiln devices measure` needs it.
    from kiln import kernels
    from kiln.kernels.dispatch import arrays
    from kiln.kernels.impl.gemm import REGISTRY, GemmProblem

    gemms: dict[str, tuple[Callable[[], Any], float]] = {}
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        left, right, target = (arrays.layout_of(x[None]) for x in (a, b.T, out))
        problem = GemmProblem(left, right, target)
        ways = {"mma.sync": devices.device_of("sm_80")}
        if current.device().has(features.WARPGROUP_MMA):
            ways["wgmma"] = current.device()
        for way, device in ways.items():
            config = REGISTRY.choose(problem, device).config

            def call(a: Any = a, b: Any = b, out: Any = out, config: Any = config) -> Any:
                return kernels.gemm(a, b.T, out=out, config=config)

            gemms[f"{way} {str(dtype).removeprefix('torch.')}"] = call, 2.0 * n**3
    return gemms


# --- doing -----------------------------------------------------------------------------------------------------------


def _act(action: str, words: list[str], args: argparse.Namespace) -> int:
    clock = words[0] if words else "base"
    takes = {"lock": ("base", "max"), "calibrate": ()}
    if len(words) > (action in takes) or any(word not in takes[action] and not word.isdigit() for word in words):
        wrong = f"{' '.join(words)!r} is not understood; lock takes base, max or MHz, calibrate MHz"
        print(f"kiln devices {action}: {wrong}", file=sys.stderr)
        return EXIT.BAD_USE
    if args.gpu not in here():
        print(f"kiln devices {action}: there is no GPU {args.gpu} here", file=sys.stderr)
        return EXIT.NOT_HERE
    uuid = driver.uuid(args.gpu)
    if action == "measure":
        driver.set_device(args.gpu)
        ceilings = measure_ceilings()
        _keep(uuid, ceilings)
        lines = [f"{name}: {value}" for name, value in ceilings.items()]
        print(json.dumps(ceilings, indent=2) if args.json else "\n".join(lines))
        return EXIT.GOOD
    try:
        if action == "calibrate":
            driver.set_device(args.gpu)
            print(_calibrated(int(clock) if words else None, uuid, args.json))
            return EXIT.GOOD
        gpu = nvml.Gpu(uuid)
        if action == "lock":
            print(f"the clock is locked at {clocks.lock(gpu, clock)} MHz, until: kiln devices unlock")
        else:
            gpu.unlock()
            print("the clock is unlocked")
    except nvml.NvmlError as refused:
        print(refused, file=sys.stderr)
        if refused.permission:
            print(f"an administrator may: {by_administrator(uuid, action, clock)}", file=sys.stderr)
        return EXIT.NOT_HERE
    return EXIT.GOOD


def _calibrated(mhz: int | None, uuid: str, as_json: bool) -> str:
    """Measure the units of the current GPU, keep them, and return what is printed."""
    units = calibrate(mhz, say=lambda line: print(line, file=sys.stderr))
    file = _file(uuid)
    if file is None:
        return units.dumps()
    kept = file.with_suffix(".units.json")
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(units.dumps())
    return units.dumps() if as_json else f"{len(units.quantities)} quantities at {units.sm_mhz:.0f} MHz: {kept}"


def by_administrator(uuid: str, action: str, clock: str) -> str:
    """Return the command with which an administrator does it."""
    if action == "unlock":
        return f"sudo nvidia-smi -i {uuid} --reset-gpu-clocks"
    gpu = nvml.Gpu(uuid)
    mhz = clock if clock.isdigit() else (gpu.base_clock() if clock == "base" else None) or gpu.highest_clock()
    return f"sudo nvidia-smi -i {uuid} --lock-gpu-clocks={mhz},{mhz}"
