"""What to try first: the flaws that a profile's own facts show, what each costs, the change, and the page about it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import kiln

from ...hardware import devices
from . import code_patterns as code
from .result import Profile, shorter
from .static_profile import StaticProfile

if TYPE_CHECKING:
    from .code_patterns import Pattern
    from .timeline import Record

LEAST_LOST = 0.1
"""The part of accesses, or of a grid's time, that must be lost before it is a flaw."""
LEAST_COST = 0.005
"""What costs less of the time by the clock is no flaw."""
_LIBRARY = os.path.dirname(os.path.abspath(kiln.__file__)) + os.sep


@dataclasses.dataclass(frozen=True)
class Flaw:
    """A flaw of a kernel that its profile shows."""

    name: str
    """Its detector's."""
    kernel: str
    file: str
    line: int
    fact: str
    """What the profile shows."""
    change: str
    """What to write instead."""
    page: str
    """The page about it, for `kiln kb show`."""
    cost: float | None = None
    """The part of the kernel's time that it costs; None if nothing says so."""
    by: str = ""
    """Where the cost is from."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of one kernel. Counts of accesses are those of the CPU target."""

    kernel: str
    static: StaticProfile | None
    shared: Sequence[Record] = ()
    global_: Sequence[Record] = ()
    clock: Record | None = None
    """The clock's prediction, as `clock_profile.to_json` returns it."""
    calls: Mapping[tuple[str, int], tuple[str, int]] = dataclasses.field(default_factory=dict)
    """The line that calls a function's line, where there is one only."""
    samples: Mapping[tuple[str, int], float] = dataclasses.field(default_factory=dict)
    """The part of a profiler's samples at each line."""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Source files by their names, by which the clock knows them."""
    moved: float | None = None
    """The bytes that global memory moves for each one that the problem reads or writes."""

    def place(self, file: str, line: int) -> tuple[str, int]:
        """Return the line of the program that a line of Kiln's works for."""
        seen = {(file, line)}
        while file.startswith(_LIBRARY) and (caller := self.calls.get((file, line))) and caller not in seen:
            seen.add(caller)
            file, line = caller
        return file, line

    def places(self, name: str) -> list[Pattern]:
        """Return the patterns of a name in the kernel's machine code, those of one line of the program as one."""
        merged: dict[tuple[str, int, int], Pattern] = {}
        for one in self.static.patterns if self.static else ():
            if one.name == name:
                file, line = self.place(one.file, one.line)
                before = merged.get((file, line, one.bytes))
                count = one.count + (before.count if before else 0)
                merged[file, line, one.bytes] = dataclasses.replace(one, file=file, line=line, count=count)
        return list(merged.values())

    @property
    def multiplies(self) -> bool:
        """Whether tensor cores have work."""
        return bool(self.static and self.static.mix.get("tensor"))

    def busy(self, *units: str) -> float | None:
        """Return how much of the time the busiest of some units is busy; None without a prediction."""
        return max(self.clock["busy"].get(unit, 0.0) for unit in units) if self.clock else None

    def gain(self, change: str) -> float | None:
        """Return the part of the time that a what-if of the clock saves; None if it was not simulated."""
        what_ifs = self.clock["what_ifs"] if self.clock else ()
        return next((-one["change_of_time"] for one in what_ifs if one["change"] == change), None)

    def flaw(
        self,
        name: str,
        place: tuple[str, int],
        fact: str,
        change: str,
        page: str,
        cost: tuple[float | None, str] = (None, ""),
    ) -> Flaw:
        """Return a flaw; where a profiler counted samples at its line, they say what it costs."""
        share = self.samples.get(place)
        part, by = (share, "samples at this line") if share is not None else cost
        return Flaw(name, self.kernel, *place, fact, change, page, part, by if part is not None else "")


Detector = Callable[[Facts], Iterator[Flaw]]


# --- waits -----------------------------------------------------------------------------------------------------------


def _wait_in_every_step(facts: Facts) -> Iterator[Flaw]:
    for one in facts.places(code.WGMMA_WAIT):
        fact = "waits for all WGMMAs in every step, so that tensor cores run dry until the next are issued"
        change = (
            "leave one group in flight, wait_group(1), release the stage before, and wait_group(0) after the loop; "
            "measure both: where two warpgroups share a tile, either may be faster"
        )
        cost = _idle_after(facts, one.file, one.line), "at most: tensor cores idle after this wait, by the clock"
        yield facts.flaw("wait-in-every-step", (one.file, one.line), fact, change, "wait-for-all-wgmma", cost)
    for one in facts.places(code.COPY_WAIT):
        fact = "waits for the cp.async copies that it has just committed: nothing is computed while they run"
        change = "commit copies for a later step, and wait with cp_async_wait_group(stages - 2) before this one's"
        yield facts.flaw("copies-not-ahead", (one.file, one.line), fact, change, "cp-async-ring")


def _idle_after(facts: Facts, file: str, line: int) -> float | None:
    """Return how long tensor cores are idle after the waits of a line; None if the clock saw none there."""
    waits = facts.clock.get("tensor_idle", {}) if facts.clock else {}
    return waits.get(f"{os.path.basename(file)}:{line}")


def _late_data(facts: Facts) -> Iterator[Flaw]:
    seen: set[tuple[str, ...]] = set()
    for one in facts.clock["pipelines"] if facts.clock else ():
        lines = tuple(one["lines"])
        late = one["late"] / max(1.0, facts.clock["cycles"]) if facts.clock else 0.0
        if lines in seen or late < LEAST_LOST or one["fills"] <= one["stages"] or not lines:
            continue
        seen.add(lines)
        file, _, line = lines[0].rpartition(":")
        fact = f"warps wait for data of this pipeline of {one['stages']} stages"
        room = _room_for_stages(facts, one["stages"])
        change = f"more stages: shared memory has room for {room}" if room else "smaller stages, and more of them"
        cost = late, "at most: waits for late data, by the clock"
        yield facts.flaw("late-data", (facts.files.get(file, file), int(line)), fact, change, "stages-that-fit", cost)


def _room_for_stages(facts: Facts, stages: int) -> int:
    """Return how many stages would fit at least if all shared memory is stages now; 0 if no further one does."""
    if facts.static is None or not facts.static.smem:
        return 0
    device = devices.device_of(facts.static.arch)
    most = device.generation.smem_per_block
    fit = int(stages * most // facts.static.smem)
    return fit if fit > stages else 0


def _accumulators(facts: Facts) -> Iterator[Flaw]:
    static = facts.static
    if static is None or static.accumulators != 1 or static.occupancy.blocks != 1:
        return
    fact = f"{static.tmem_columns} columns of tensor memory hold one accumulator: MMAs wait while the epilogue reads it"
    change = (
        "a persistent kernel with two accumulators, PipelineUmmaAsync.create(num_stages=2): the epilogue stores one "
        "while MMAs fill the other"
    )
    yield facts.flaw("one-accumulator", _first_line(facts, "tensor"), fact, change, "blackwell")


def _first_line(facts: Facts, kind: str) -> tuple[str, int]:
    """Return the line of the program with the most instructions of a class."""
    counted: dict[tuple[str, int], int] = {}
    for line in facts.static.lines if facts.static else ():
        place = facts.place(line.file, line.line)
        counted[place] = counted.get(place, 0) + line.mix.get(kind, 0)
    return max(counted, key=counted.__getitem__, default=("", 0))


# --- memory ----------------------------------------------------------------------------------------------------------


def _stores_of_results(facts: Facts) -> Iterator[Flaw]:
    """Yield the lines at which threads store what tensor cores computed, a few bytes at a time."""
    if not facts.multiplies:
        return
    for one in facts.places(code.NARROW_STORE):
        counted = _counted_at(facts, (one.file, one.line), "st")
        served, ideal = (sum(each[name] for each in counted) for name in ("sectors", "ideal"))
        if counted and served < (1 + LEAST_LOST) * ideal:
            continue
        sectors = f", {served / ideal:.2g} times the sectors that these bytes need" if ideal else ""
        fact = f"threads store results {one.bytes} bytes at a time in {one.count} instructions{sectors}"
        change = (
            "stmatrix to a swizzled tile of shared memory, and from there TMA stores (before sm_90: 16-byte stores)"
        )
        gain = facts.gain("stores of threads twice as fast")
        cost = gain, "were stores of threads twice as fast, simulated"
        yield facts.flaw("narrow-results", (one.file, one.line), fact, change, "results-through-shared-memory", cost)


def _counted_at(facts: Facts, place: tuple[str, int], operation: str) -> list[Record]:
    return [one for one in facts.global_ if one["operation"] == operation and _place(facts, one) == place]


def _place(facts: Facts, counted: Record) -> tuple[str, int]:
    span = counted["span"]
    return facts.place(span["file"], span["line"]) if span else ("", 0)


def _uncoalesced(facts: Facts) -> Iterator[Flaw]:
    stored = {(one.file, one.line) for one in facts.places(code.NARROW_STORE)} if facts.multiplies else set()
    all_sectors = sum(one["sectors"] for one in facts.global_)
    for one in facts.global_:
        place = _place(facts, one)
        lost = one["excess"]
        if place in stored or lost < LEAST_LOST * all_sectors or one["sectors"] < 2 * one["ideal"]:
            continue
        verb = {"ld": "loads", "st": "stores"}.get(one["operation"], one["operation"])
        each = one["sectors"] / one["accesses"]
        fact = f"uncoalesced: a warp's {verb} of {one['width']} bytes touch {each:.3g} sectors, and need "
        fact += f"{one['ideal'] / one['accesses']:.3g}"
        change = "let neighbouring threads access neighbouring elements; turn tiles round in shared memory"
        share = lost / all_sectors
        busy = facts.busy("dram", "l2 read" if verb == "loads" else "l2 write")
        cost = None if busy is None else busy * share, "at most: these sectors' part of the busiest memory's time"
        yield facts.flaw("uncoalesced", place, fact, change, "sixteen-byte-accesses", cost)


def _neighbours(facts: Facts) -> Iterator[Flaw]:
    if facts.multiplies:
        return
    for one in facts.places(code.NEIGHBOURS):
        verb = "stores" if one.stores else "loads"
        fact = f"a thread {verb} neighbouring elements by {one.count} instructions of {one.bytes} bytes"
        change = (
            "16-byte accesses: align=16 at make_ptr or from_dlpack(assumed_align=16), and vectors in the tiled copy"
        )
        yield facts.flaw("narrow-accesses", (one.file, one.line), fact, change, "sixteen-byte-accesses")


def _bank_conflicts(facts: Facts) -> Iterator[Flaw]:
    wavefronts = sum(one["wavefronts"] for one in facts.shared)
    swizzles = facts.static is not None and "TMA" in facts.static.instructions
    for one in facts.shared:
        if one["conflicts"] < max(1.0, LEAST_LOST * wavefronts):
            continue
        fact = f"{one['worst']}-way bank conflicts: {one['conflicts']} of {wavefronts} wavefronts are lost here"
        change = "swizzle the tile of shared memory: cute.make_composed_layout(cute.make_swizzle(...), 0, layout)"
        page = "swizzle-instead-of-padding"
        if swizzles:
            change = "a tile with TMA's swizzle, as make_smem_layout_a chooses it"
            page = "tma-boxes-are-swizzled"
        busy = facts.busy("smem", "lsu")
        part = None if busy is None else busy * one["conflicts"] / wavefronts
        cost = part, "at most: these wavefronts' part of the time of shared memory"
        yield facts.flaw("bank-conflicts", _place(facts, one), fact, change, page, cost)


def _operands(facts: Facts) -> Iterator[Flaw]:
    singles = facts.places(code.SINGLE_OPERANDS)
    if singles:
        one = max(singles, key=lambda each: each.count)
        count = sum(each.count for each in singles)
        fact = f"operands of MMAs come from shared memory by {count} loads of {one.bytes} bytes in each step"
        change = "ldmatrix: cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), dtype), mma)"
        yield facts.flaw("single-operands", (one.file, one.line), fact, change, "ldmatrix-for-operands")
    for one in facts.places(code.THROUGH_REGISTERS):
        fact = "tiles go to shared memory through registers, and the warps wait for them"
        change = "cp.async with stages: cpasync.CopyG2SOp()"
        yield facts.flaw("through-registers", (one.file, one.line), fact, change, "cp-async-ring")


def _read_again(facts: Facts) -> Iterator[Flaw]:
    if facts.moved is None or facts.moved < 1.4 or facts.multiplies:
        return
    loads = [one for one in facts.global_ if one["operation"] == "ld"]
    if not loads:
        return
    most = max(loads, key=lambda one: one["sectors"])
    fact = f"global memory moves {facts.moved:.2g} times the bytes of the arrays: they are read more than once"
    change = "keep a row in registers (or shared memory) between the passes over it"
    yield facts.flaw("read-again", _place(facts, most), fact, change, "rows-in-registers")


# --- arithmetic, registers, grid -------------------------------------------------------------------------------------


def _divisions(facts: Facts) -> Iterator[Flaw]:
    static = facts.static
    total = sum(static.mix.values()) if static else 0
    for name, what, change in (
        (code.DIVISION, "division", "cute.math.rcp(x, approx=True), or v * cute.arch.rcp_approx(x)"),
        (code.ROOT, "square root", "cute.math.sqrt(x, approx=True), or x * cute.math.rsqrt(x, approx=True)"),
    ):
        for one in facts.places(name):
            own = sum(
                line.instructions
                for line in (static.lines if static else ())
                if facts.place(line.file, line.line) == (one.file, one.line)
            )
            if not facts.multiplies and one.count < 4:
                continue
            fact = (
                f"{one.count} precise {what}{'s' if one.count > 1 else ''}, each with a branch to a slow path: "
                f"{own} of {total} instructions are of this line"
            )
            change_ = f"where two bits less are enough: {change}"
            yield facts.flaw("precise-division", (one.file, one.line), fact, change_, "approximate-division")


def _spills(facts: Facts) -> Iterator[Flaw]:
    static = facts.static
    if static is None or not static.spill_stores + static.spill_loads:
        return
    spilled = facts.places(code.SPILL)
    most = max(spilled, key=lambda one: one.count, default=None)
    place = (most.file, most.line) if most else ("", 0)
    fact = (
        f"{static.spill_stores} bytes are stored to local memory for want of registers and {static.spill_loads} loaded "
        f"({static.registers} registers a thread)"
    )
    change = "a smaller tile, or more warps to hold it"
    if "WGMMA" in static.instructions:
        change = (
            "give the registers of the loading warpgroup away (setmaxregister_decrease and _increase), or " + change
        )
    yield facts.flaw("spills", place, fact, change, "register-reallocation")


def _tail(facts: Facts) -> Iterator[Flaw]:
    waves = _waves(facts)
    if not waves or facts.static is None:
        return
    ctas = math.prod(facts.static.grid)
    blocks = facts.clock["ctas_per_sm"] if facts.clock else facts.static.occupancy.blocks
    rounds = math.ceil(waves)
    # A CTA that has an SM alone is as fast as several that share one, so what counts below one wave is SMs without any.
    lost = 1 - waves / rounds if rounds > 1 else 1 - waves * blocks
    if lost < LEAST_LOST:
        return
    if rounds == 1:
        fact = f"{ctas} CTAs leave {lost:.0%} of the SMs idle"
        change = "smaller tiles, or split-K: a CTA for every SM"
    else:
        fact = f"a tail wave: {ctas} CTAs are {waves:.2f} waves, and take the time of {rounds}"
        change = "another tile size, a persistent kernel with split-K or stream-K, or equal shares"
    cost = lost if facts.clock else None, "idle SMs, by the grid"
    yield facts.flaw("tail-wave", _head(facts), fact, change, "equal-shares", cost)


def _head(facts: Facts) -> tuple[str, int]:
    """Return where the kernel begins: the first line of the file that most of its instructions are from."""
    counted: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for line in facts.static.lines if facts.static else ():
        places.append(facts.place(line.file, line.line))
        counted[places[-1][0]] = counted.get(places[-1][0], 0) + line.instructions
    main = max(counted, key=counted.__getitem__, default="")
    return min((place for place in places if place[0] == main), default=("", 0))


def _waves(facts: Facts) -> float:
    if facts.clock:
        return facts.clock["waves"]
    if facts.static is None:
        return 0.0
    waves = facts.static.waves(devices.device_of(facts.static.arch))
    return waves if math.isfinite(waves) else 0.0


def _same_tiles(facts: Facts) -> Iterator[Flaw]:
    gain = facts.gain("copies twice as fast")
    static = facts.static
    if (
        gain is None
        or gain < 0.05
        or static is None
        or math.prod(static.cluster) > 1
        or "TMA" not in static.instructions
    ):
        return
    fact = "copies hold the tensor cores up, and each CTA loads its tiles alone"
    change = "clusters whose CTAs share tiles by TMA multicast, or larger tiles"
    cost = gain, "were copies twice as fast, simulated"
    yield facts.flaw("tiles-loaded-alone", _first_line(facts, "copy"), fact, change, "cluster-multicast", cost)


DETECTORS: tuple[Detector, ...] = (
    _wait_in_every_step,
    _late_data,
    _accumulators,
    _stores_of_results,
    _uncoalesced,
    _neighbours,
    _bank_conflicts,
    _operands,
    _read_again,
    _divisions,
    _spills,
    _tail,
    _same_tiles,
)


def flaws(facts: Facts) -> list[Flaw]:
    """Return the flaws of a kernel, the most expensive first, then those whose cost nothing says."""
    every = [one for detector in DETECTORS for one in detector(facts)]
    worth = [one for one in every if one.cost is None or one.cost >= LEAST_COST]
    return sorted(worth, key=lambda one: -1.0 if one.cost is None else -one.cost)


# --- of a profile ----------------------------------------------------------------------------------------------------


def facts_of(profile: Profile) -> list[Facts]:
    """Return what a profile knows of its kernels."""
    extra = profile.extra
    statics = [StaticProfile.from_json(each) for each in extra.get("static", ())]
    callers: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for file, line, *caller in extra.get("calls", ()):
        callers.setdefault((file, line), set()).add((caller[0], caller[1]))
    calls = {place: next(iter(above)) for place, above in callers.items() if len(above) == 1}
    predictions: Sequence[Record] = extra.get("clock", {}).get("predictions", ())
    names = list(dict.fromkeys([*(each.kernel for each in statics), *(each["kernel"] for each in predictions)]))
    return [
        Facts(
            name,
            next((each for each in statics if each.kernel == name), None),
            [each for each in extra.get("bank_conflicts", ()) if each["kernel"] == name],
            [each for each in extra.get("coalescing", ()) if each["kernel"] == name],
            next((each for each in predictions if each["kernel"] == name), None),
            calls,
            _samples(profile, name),
            extra.get("files", {}),
            extra.get("moved") if len(names) == 1 else None,
        )
        for name in names
    ]


def _samples(profile: Profile, kernel: str) -> dict[tuple[str, int], float]:
    if profile.counted != "samples":
        return {}
    own = next((each for each in profile.kernels if each.name.startswith(kernel)), None)
    total = sum(line.total for line in own.lines) if own else 0
    return {(line.file, line.line): (line.total + line.called) / total for line in own.lines} if own and total else {}


def advise(profile: Profile) -> list[Flaw]:
    """Find the flaws of a profile's kernels and keep them in its `extra`."""
    every = [one for facts in facts_of(profile) for one in flaws(facts)]
    profile.extra["advice"] = [dataclasses.asdict(one) for one in every]
    return every


def text(records: Sequence[Record], most: int = 6) -> str:
    """Return flaws as text, from the JSON of a profile."""
    if not records:
        return "what to try first: no known flaw shows in these facts\n"
    lines = ["what to try first"]
    for number, one in enumerate(records[:most], 1):
        where = f"{shorter(one['file'])}:{one['line']}" if one["file"] else one["kernel"]
        lines.append(f"  {number}. {where}: {one['fact']}")
        if one["cost"] is not None:
            lines.append(f"     costs {one['cost']:.0%} of the time ({one['by']})")
        lines.append(f"     try: {one['change']}")
        lines.append(f"     more: kiln kb show {one['page']}")
    if len(records) > most:
        lines.append(f"  and {len(records) - most} more in --json")
    return "\n".join(lines) + "\n"
