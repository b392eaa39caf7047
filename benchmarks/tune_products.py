"""Measure plans of matrix products on Hopper, fit the model that chooses among them, and show what its choices cost.

    python benchmarks/tune_products.py compile [--within 1.6] [--only "few rows"]   # what is missing, for the disk cache: needs the GPU
    python benchmarks/tune_products.py measure [--seconds 200] [--within 1.6] [--only "few rows"]   # the same
    python benchmarks/tune_products.py fit        # writes src/kiln/kernels/products/hopper_model.py
    python benchmarks/tune_products.py report [--run last]     # chosen and best plans, shape by shape

`compile --again 4` and `measure --again 4` take the chosen plan of each shape and the best three others that were measured, whether they are missing or not: in one
run they are beside each other, which those of different days are not.

Shapes are those of `benchmarks/data/products_shapes.json`: those that figures are fitted to and rules were made after, of which thirty are drawn by
chance (`drawn`), and ten drawn with another seed (`--only unseen`) that are measured once, when all of that is done. Each measurement is a line of
`benchmarks/data/products_h200.jsonl`, written at once: `measure` goes on where it was stopped. Plans of a shape take turns, beside cuBLAS, with
normal data, in graphs of calls: how fast the host is does not count. Plans that were measured on different days are compared by how much faster
than cuBLAS they were. `compile` goes first, in several processes: `measure` would compile one after the other.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import kiln
from kiln.kernels.common.problem import Laid
from kiln.kernels.devices import device_of
from kiln.kernels.products import FAMILY, Product, hopper_cost, hopper_model
from kiln.kernels.products.hopper_plan import HopperTiling
from kiln.kernels.products.plan import Tiling

_DATA = Path(__file__).parent / "data"
_MODEL = Path(hopper_model.__file__)
_TYPES = {"float16": kiln.Float16, "bfloat16": kiln.BFloat16}
_PLANS = {"HopperTiling": HopperTiling, "Tiling": Tiling}
_STAY = 1.0
"""How much figures are held where they were: what few measurements tell of hardly moves."""
_ALL = 0.15
"""How much it counts how far all plans of a shape are from what was measured, beside how they differ."""
_REGRET, _BEHIND, _SHARP = 3.0, 1.01, 60
"""How much it counts that a chosen plan is slower than the best, by more than that; and how sharply costs choose."""
_SLICES = (8e-3, 90e-3)
"""Seconds of back to back calls that are timed at once, and of products that take long, which run at the power limit: two thirds of them, then."""
_WARM = 1.0
"""Seconds of work before anything is timed."""
_LONG = 100.0
"""Microseconds of such a product, and how much slower plans may be expected to be that are measured for it."""
_NEAR = 1.2


def shapes() -> list[dict[str, Any]]:
    """Those of the data file; `{"drawn": seed}` stands for ten."""
    found = json.loads((_DATA / "products_shapes.json").read_text())
    return [y for x in found for y in (drawn(x["drawn"], x["held_out"]) if "drawn" in x else [x])]


_HIDDEN, _WIDER = (2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192), (1.0, 1.5, 2.0, 2.6875, 3.5, 4.0)
"""Widths of layers, and of what is between them."""


def drawn(seed: int, held_out: bool) -> list[dict[str, Any]]:
    """Ten shapes of the kinds of the forty, by chance."""
    chance, found = random.Random(seed), []

    def add(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "NT") -> None:
        found.append(
            {
                "kind": "unseen" if held_out else f"drawn {seed}",
                "dtype": dtype,
                "m": m,
                "n": n,
                "k": k,
                "layout": layout,
                "held_out": held_out,
            }
        )

    def layer() -> tuple[int, int]:
        hidden = chance.choice(_HIDDEN)
        sizes = [hidden, int(hidden * chance.choice(_WIDER)) // 64 * 64]
        chance.shuffle(sizes)
        return sizes[0], sizes[1]

    for _ in range(2):  # layers
        add(128 * chance.randint(4, 64), *layer())
    for _ in range(3):  # few rows
        add(int(2 ** chance.uniform(0, 8)), *layer())
    for _ in range(2):  # long K
        add(64 * chance.randint(1, 12), 64 * chance.randint(1, 12), 1024 * chance.randint(8, 64))
    add(512 * chance.randint(4, 32), 8 * chance.randint(2, 32), layer()[1])  # thin N
    add(*(8 * chance.randint(60, 500) for _ in range(3)))  # type: ignore[reportArgumentType]  # odd
    add(*(64 * chance.randint(8, 64) for _ in range(3)), "float16", chance.choice(["NN", "TN", "TT"]))  # type: ignore[reportArgumentType]
    return found


def problem_of(shape: dict[str, Any]) -> Product:
    """The product of arrays without gaps."""
    dtype, m, n, k = _TYPES[shape["dtype"]], shape["m"], shape["n"], shape["k"]
    a = Laid.dense(dtype, 1, m, k) if shape["layout"][0] == "N" else Laid(dtype, (1, m, k), (m * k, 1, m))
    b = Laid.dense(dtype, 1, k, n) if shape["layout"][1] == "N" else Laid(dtype, (1, k, n), (n * k, 1, k))
    return Product(a, b, Laid.dense(dtype, 1, m, n))


def plans_of(shape: dict[str, Any], within: float, most: int) -> list[Any]:
    """Those that may be best: the cheapest by the model, some of each implementation."""
    choices = FAMILY.choices(problem_of(shape), device_of("sm_90a"))
    long = choices[0].cost > _LONG
    near = [x for x in choices if x.cost <= (min(within, _NEAR) if long else within) * choices[0].cost]
    hopper = [x.plan for x in near if isinstance(x.plan, HopperTiling)][: most // 2 if long else most]
    return [*hopper, *[x.plan for x in near if isinstance(x.plan, Tiling)][: 2 if hopper else 4]]


def key_of(shape: dict[str, Any], plan: Any) -> str:
    sizes = "x".join(str(shape[x]) for x in "mnk")
    return f"{shape['dtype']} {shape['layout']} {sizes} {plan!r}"


class Journal:
    """What was measured."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [json.loads(line) for line in lines]
        for row in self.rows:  # as it is now: plans have other fields than they had
            row["key"] = key_of(row["shape"], _PLANS[row["kind"]](**_tuples(row["plan"])))
        self.known = {row["key"] for row in self.rows}

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.known.add(row["key"])
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def last(self, shape: dict[str, Any]) -> str | None:
        """The last run that has two plans of a shape or more."""
        runs = [row["run"] for row in self.rows if "run" in row and _same(row["shape"], shape)]
        return max((run for run in runs if runs.count(run) > 1), default=None)

    def of(self, shape: dict[str, Any], run: str | None = None) -> list[tuple[Any, float, float]]:
        """Plans of a shape with their microseconds, and cuBLAS's, the fastest first: as if measured beside the median of cuBLAS's. `run`: of that alone."""
        rows = [row for row in self.rows if _same(row["shape"], shape) and run in (None, row.get("run"))]
        usual = statistics.median(row["cublas_us"] for row in rows) if rows else 0.0
        found = {
            row["key"]: (_PLANS[row["kind"]](**_tuples(row["plan"])), row["us"] * usual / row["cublas_us"], usual)
            for row in rows
        }
        return sorted(found.values(), key=lambda x: x[1])


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[x] == b[x] for x in ("dtype", "layout", "m", "n", "k"))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}


# --- measuring -------------------------------------------------------------------------------------------------------


def _operands(shape: dict[str, Any], random: bool) -> tuple[Any, Any, Any]:
    import torch

    dtype, m, n, k = getattr(torch, shape["dtype"]), shape["m"], shape["n"], shape["k"]
    made = torch.randn if random else torch.empty

    def matrix(rows: int, columns: int, way: str) -> Any:
        x = made((rows, columns) if way == "N" else (columns, rows), device="cuda", dtype=dtype)
        return x if way == "N" else x.T

    return (
        matrix(m, k, shape["layout"][0]),
        matrix(k, n, shape["layout"][1]),
        torch.empty(m, n, device="cuda", dtype=dtype),
    )


def _compile(job: tuple[dict[str, Any], Any]) -> str:
    from kiln import kernels

    shape, plan = job
    a, b, out = _operands(shape, False)
    try:
        kernels.gemm(a, b, out=out, plan=plan)
    except Exception as wrong:  # told, and not measured
        return f"{key_of(shape, plan)}: {wrong}"
    return ""


def _kernel(plan: Any) -> Any:
    """What is the same for plans of one kernel, however many sums they have."""
    few = isinstance(plan, HopperTiling) and plan.sums > 1
    return (dataclasses.replace(plan, sums=2), plan.sums > 8) if few else plan


def compile_all(jobs: list[tuple[dict[str, Any], Any]], processes: int) -> None:
    """Once for each kind: extents are not compiled in."""
    kinds = {
        (s["dtype"], s["layout"], s["m"] == 1, s["n"] % 8, s["k"] % 8, _kernel(plan)): (s, plan) for s, plan in jobs
    }
    start, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(processes, os.cpu_count() or 1), context) as pool:
        for message in pool.map(_compile, kinds.values(), chunksize=4):
            if message:
                print(message, flush=True)
    print(f"{len(kinds)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)


def _wanted(shape: dict[str, Any], only: str | None) -> bool:
    """Whether a shape is of a kind: one of the data file, `forty` for those that were there first, some with commas, None for all that figures are fitted to."""
    if only and "," in only:
        return any(_wanted(shape, one) for one in only.split(","))
    if only in (None, "forty"):
        return not shape["held_out"] and (only is None or not _later(shape))
    return shape["kind"] == only


def _later(shape: dict[str, Any]) -> bool:
    return shape["kind"] == "once unseen" or shape["kind"].startswith("drawn")


def missing(journal: Journal, within: float, most: int, only: str | None) -> list[tuple[dict[str, Any], list[Any]]]:
    """Shapes with plans that are not measured; those first of which none is."""
    found = [
        (shape, [p for p in plans_of(shape, within, most) if key_of(shape, p) not in journal.known])
        for shape in shapes()
        if _wanted(shape, only)
    ]
    return sorted([(shape, plans) for shape, plans in found if plans], key=lambda pair: bool(journal.of(pair[0])))


def again(journal: Journal, count: int, only: str | None) -> list[tuple[dict[str, Any], list[Any]]]:
    """The plan that is chosen for each shape and the best others that were measured, so many in all."""
    found, device = [], device_of("sm_90a")
    for shape in shapes():
        if _wanted(shape, only):
            choices = [choice.plan for choice in FAMILY.choices(problem_of(shape), device)]
            known = [plan for plan, _, _ in journal.of(shape) if plan in choices]
            found.append((shape, list(dict.fromkeys([choices[0], *known, *choices[1:]]))[:count]))
    return sorted(found, key=lambda pair: math.prod(pair[0][x] for x in "mnk"))  # what takes long last


def measure(todo: list[tuple[dict[str, Any], list[Any]]], journal: Journal, seconds: float) -> None:
    import torch

    from kiln import kernels

    end, run = time.perf_counter() + seconds, time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    large = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    while time.perf_counter() < end - seconds + _WARM:  # until clocks have risen
        torch.mm(large, large)
        torch.cuda.synchronize()
    for shape, plans in todo:
        if time.perf_counter() > end:
            print("time is up: the same command goes on from here")
            return
        a, b, out = _operands(shape, True)
        wanted = torch.mm(a, b)
        first = Timed(torch, functools.partial(torch.mm, a, b, out=out))
        calls: dict[Any, Timed] = {"cublas": first}
        for plan in plans:
            out.zero_()
            try:
                made = Timed(torch, functools.partial(kernels.gemm, a, b, out=out, plan=plan), first.long)
            except Exception as wrong:
                print(f"{key_of(shape, plan)}: {wrong}", flush=True)
                continue
            worst = ((out.float() - wanted.float()).abs().max() / wanted.float().abs().max()).item()
            if not worst <= 1e-2:
                print(f"{key_of(shape, plan)}: WRONG, {worst:.1e} away from cuBLAS", flush=True)
                continue
            calls[plan] = made
        times = {name: [] for name in calls}
        for turn in range(4):  # in another order each time: what ran before decides how fast clocks are
            for name in random.Random(turn).sample(list(calls), len(calls)):
                took = calls[name].seconds()
                if turn:
                    times[name].append(took)
        us = {name: statistics.median(own) * 1e6 for name, own in times.items()}
        for plan in list(calls)[1:]:
            journal.add(
                {
                    "key": key_of(shape, plan), "shape": {x: shape[x] for x in ("dtype", "layout", "m", "n", "k")},
                    "kind": type(plan).__name__, "plan": dataclasses.asdict(plan), "us": round(us[plan], 2),
                    "cublas_us": round(us["cublas"], 2), "run": run,
                }
            )  # fmt: skip
        best = min(list(calls)[1:], key=us.__getitem__, default=None)
        if best is not None:
            print(f"{key_of(shape, best)}: {us[best]:.1f} us, cuBLAS {us['cublas']:.1f}", flush=True)


class Timed:
    """A graph of calls that take some milliseconds."""

    def __init__(self, torch: Any, call: Any, long: bool | None = None) -> None:
        self.torch, self.events = torch, [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        call()
        took = self.elapsed(call)
        for _ in range(2):
            took = min(took, self.elapsed(call))
        self.long = took * 1e6 > _LONG if long is None else long
        self.count = max(1, min(200, int(2e-3 / took)))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.count):
                call()
        took = min(self.elapsed(self.graph.replay) for _ in range(2)) / self.count
        self.replays = max(1, int(_SLICES[self.long] / took / self.count))

    def elapsed(self, call: Any) -> float:
        start, end = self.events
        start.record()
        call()
        end.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    def seconds(self) -> float:
        """Of a call among others."""
        timed = self.replays
        if self.long:  # until clocks are what they will be
            timed = max(1, 2 * self.replays // 3)
            for _ in range(self.replays - timed):
                self.graph.replay()
        else:
            self.graph.replay()
        return self.elapsed(lambda: [self.graph.replay() for _ in range(timed)]) / timed / self.count


# --- the model -------------------------------------------------------------------------------------------------------


def _given_up(problem: Product, plan: HopperTiling) -> bool:
    """Whether a plan was measured once, and is not made any more."""
    few = not plan.swapped and 2 * problem.shape[1] <= plan.block_mnk[0]
    return few or (plan.sums > 1 and plan.blocks > plan.splits) or (plan.splits > 1 and plan.registers(False) > 96)


def fit(journal: Journal) -> None:
    """Figures such that plans of a shape differ as they were measured to, and the best are chosen, of shapes that are not held out.

    What counts is which is faster: how far all plans of a shape are from what was measured counts little. Where a run has several of a shape, it tells which is the best."""
    device = device_of("sm_90a")
    found: list[tuple[Product, list[tuple[Any, float, float | None]], set[Any]]] = []
    for shape in shapes():
        problem, rows = problem_of(shape), []
        for plan, us, _ in journal.of(shape) if not shape["held_out"] else ():
            if isinstance(plan, HopperTiling):
                known = None
                if _given_up(problem, plan):
                    continue
            else:
                known = FAMILY.choose(problem, device, plan).implementation.cost(problem, plan, device)
            rows.append((plan, us, known))
        if len(rows) > 1:
            beside = {plan for plan, _, _ in journal.of(shape, journal.last(shape))}
            found.append((problem, rows, beside & {plan for plan, _, _ in rows}))
    model = dict(hopper_model.MODEL)
    first = dict(model)
    fixed = {"bytes", "promoted", "alone", "others", "followed", "launch"}  # not told apart by these shapes

    def error(model: dict[str, float]) -> float:
        total = 0.0
        for problem, rows, beside in found:
            costs = [known or hopper_cost.expected(problem, plan, device, model) for plan, _, known in rows]
            best = min(us for plan, us, _ in rows if plan in beside)
            weights = [min(1.0, best / us) ** 6 * (1.0 if plan in beside else 0.4) for plan, us, _ in rows]
            ratios = [math.log(cost / us) for cost, (_, us, _) in zip(costs, rows, strict=True)]
            mean = sum(w * r for w, r in zip(weights, ratios, strict=True)) / sum(weights)
            for weight, ratio, (_, _, known) in zip(weights, ratios, rows, strict=True):
                off = abs(ratio - mean)
                total += weight * min(off, 0.3 + 0.2 * off) ** 1.5
                total += 0.0 if known else _ALL * weight * min(abs(ratio), 0.3) ** 1.5
            near = [(cost, us) for cost, (plan, us, _) in zip(costs, rows, strict=True) if plan in beside]
            least = min(cost for cost, _ in near)
            shares = [(least / cost) ** _SHARP for cost, _ in near]  # what is chosen, or nearly
            chosen = sum(share * us for share, (_, us) in zip(shares, near, strict=True)) / sum(shares)
            total += _REGRET * max(0.0, chosen / best - _BEHIND)
        return total + sum(_STAY * math.log(model[name] / first[name]) ** 2 for name in model)

    now = error(model)
    for sweep in range(12):
        before = now
        for name in [name for name in model if name not in fixed]:
            for factor in (1.25, 1.08, 1.03, 0.97, 0.92, 0.8):
                tried = {**model, name: model[name] * factor}
                if (wrong := error(tried)) < now:
                    model, now = tried, wrong
        print(f"sweep {sweep}: {now:.3f} of {sum(len(rows) for _, rows, _ in found)} measurements", flush=True)
        if now > 0.995 * before:
            break
    lines = _MODEL.read_text().splitlines()
    made = ["MODEL = {", *(f'    "{name}": {value:.3g},' for name, value in model.items()), "}"]
    _MODEL.write_text("\n".join([*lines[: lines.index("MODEL = {")], *made, *lines[lines.index("}") + 1 :]]) + "\n")


def short(plan: Any) -> str:
    """A plan in few characters."""
    text = f"{'x'.join(map(str, plan.block_mnk))}, {plan.stages} stages"
    if isinstance(plan, HopperTiling):
        text = f"wgmma {text}, cluster {plan.cluster_mn[0]}x{plan.cluster_mn[1]}"
        text += ", pingpong" * plan.pingpong + ", swapped" * plan.swapped + f", {plan.sums} sums" * (plan.sums > 1)
        text += ", turned" * plan.turned
        text += f", {plan.buffers} buffers" * (plan.buffers > 2 and not plan.staged)
    else:
        text = f"mma.sync {text}, warps {plan.warps_mn[0]}x{plan.warps_mn[1]}"
    return text + (f", {plan.splits} parts" if plan.splits > 1 else "")


def report(journal: Journal, run: str | None = None) -> None:
    """What is chosen, as measured, beside the best that was measured and beside cuBLAS: the forty shapes, others of the fit, and the unseen."""
    groups: list[list[dict[str, Any]]] = [[], [], []]
    for shape in shapes():
        groups[2 if shape["held_out"] else 1 if _later(shape) else 0].append(shape)
    for some in groups:
        _report(journal, some, run)


def _report(journal: Journal, some: list[dict[str, Any]], run: str | None) -> None:
    print(
        "| | M | N | K | cuBLAS us | best us | chosen us | of the best | of cuBLAS | chosen | best |\n"
        + "|---" * 11
        + "|"
    )
    behind, ahead = [], []
    for shape in some:
        found = journal.of(shape, journal.last(shape) if run == "last" else run)
        if not found:
            continue
        chosen = FAMILY.choose(problem_of(shape), device_of("sm_90a")).plan
        us = next((took for plan, took, _ in found if plan == chosen), math.nan)
        cublas = statistics.median(x for _, _, x in found)
        behind.append(found[0][1] / us)
        ahead.append(cublas / us)
        print(
            f"| {shape['dtype']} {shape['layout']} | {shape['m']} | {shape['n']} | {shape['k']} | {cublas:.1f} "
            f"| {found[0][1]:.1f} | {us:.1f} | {behind[-1]:.2f} | {ahead[-1]:.2f} | {short(chosen)} | {short(found[0][0])} |"
        )
    known = [(x, y) for x, y in zip(behind, ahead, strict=True) if not math.isnan(x)]
    if known:
        mean = math.exp(statistics.mean(math.log(y) for _, y in known))
        print(
            f"\n{len(known)} shapes: chosen plans at worst {min(x for x, _ in known):.2f} of the best and {min(y for _, y in known):.2f} of cuBLAS, "
            f"on average {mean:.3f} of cuBLAS\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compile", "measure", "fit", "report"])
    parser.add_argument("--journal", type=Path, default=_DATA / "products_h200.jsonl")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--within", type=float, default=1.6)
    parser.add_argument("--most", type=int, default=14, help="plans of a shape; half of them where they take long")
    parser.add_argument("--only")
    parser.add_argument("--processes", type=int, default=14, help="that compile")
    parser.add_argument("--again", type=int, help="so many plans of each shape, measured before or not")
    parser.add_argument(
        "--run", help="measurements of it alone, by its date; last: of the last that has several plans of a shape"
    )
    given = parser.parse_args()
    journal = Journal(given.journal)
    if given.what in ("compile", "measure"):
        todo = (
            again(journal, given.again, given.only)
            if given.again
            else missing(journal, given.within, given.most, given.only)
        )
        if given.what == "compile":
            compile_all([(shape, plan) for shape, plans in todo for plan in plans], given.processes)
        else:
            measure(todo, journal, given.seconds)
    elif given.what == "fit":
        fit(journal)
    else:
        report(journal, given.run)


if __name__ == "__main__":
    main()
