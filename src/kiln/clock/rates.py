"""What the units of a GPU take, as the simulation of an SM asks for it: cycles and bytes in a cycle, at a clock, with so many SMs busy."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from ..base_dsl.diagnostics import DSLRuntimeError, error
from ..hardware.devices import Model
from . import units

if TYPE_CHECKING:
    from .units import Units

BOX = 16 << 10
"""The bytes of the boxes that rates of TMA are measured with."""
ACCESS = 512
"""The bytes of a warp's access by 16 bytes a lane, which has sixteen sectors."""
SECTOR = 32
SUSTAINED = ((0.01, ", a hundredth of the time"), (0.1, ", a tenth of the time"), (0.5, ", half the time"), (1.0, ""))
"""Parts of the time that tensor cores run, and the names of the clocks that were measured then."""
CHAINS = 8
"""The instructions of a round that is timed beside WGMMAs."""
BESIDE = (("fma", "ffma", "ffma"), ("alu", "lop3", "lop3"), ("mufu", "mufu", "mufu.ex2"))
"""Pipes, what was timed of them beside WGMMAs, and alone."""


@dataclasses.dataclass(frozen=True)
class Umma:
    """An instruction of tcgen05.mma: cycles until the next may begin, and until its results are there."""

    interval: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Rates:
    """What units take, in cycles of the SM; rates of memory are those of one SM while the others do the same."""

    mhz: float
    """The clock that cycles are of."""
    mma_rows: dict[int, float]
    """Cycles of a WGMMA whose K has 32 bytes, by n."""
    mma_latency: float
    """From the end of a WGMMA until its accumulators can be read."""
    mma_lost: float
    """Cycles that the tensor cores lose for each KiB that TMA writes to shared memory meanwhile."""
    mma_stolen: float
    """Cycles that the tensor core of a sub-core loses for an instruction of its FMA pipe meanwhile."""
    beside_mma: dict[str, float]
    """By how much longer pipes take an instruction while the tensor core runs."""
    umma_rows: dict[tuple[int, int, bool], dict[int, Umma]]
    """Instructions of tcgen05.mma by the CTAs of a group, M, whether A is in tensor memory, and N."""
    tmem_bytes: float
    """Bytes in a cycle that the warps of an SM load from tensor memory."""
    tmem_latency: float
    request: float
    """From a request to cluster launch control until its answer is there."""
    tma_issue: float
    tma_latency: float
    """From the issue of a load until its first bytes come from the L2 cache."""
    dram_latency: float
    """What DRAM adds to that."""
    tma_port: float
    """Bytes that an SM takes from the L2 cache in a cycle."""
    l2_bytes: float
    """Bytes in a cycle of an SM while all read different ones from the L2 cache."""
    dram_bytes: float
    """The same from DRAM."""
    store_port: float
    """Bytes in a cycle that an SM writes by TMA."""
    store_latency: float
    l2_write_bytes: float
    dram_write_bytes: float
    load_latency: float
    load_sector: float
    """Cycles of the path from the L2 cache for a sector that threads load."""
    load_line: float
    """The same for a line of which they load one sector."""
    store_sector: float
    """Cycles for a sector that threads store whole."""
    partial_sector: float
    dram_sector: float
    dram_mix: float
    """How much longer DRAM takes for as many reads as writes than for one after the other."""
    arrive: float
    wake: float
    """From the last arrival at an mbarrier until a waiting warp goes on."""
    barrier: float
    """From the last arrival of four warps at a barrier of the CTA until they go on."""
    barrier_warp: float
    """What each further warp adds."""
    cluster: float
    descriptor: float
    """What the first use of a tensor map by a CTA adds, unless it was prefetched."""
    drain: float
    """From the end of the last CTA until what it stored is there."""
    start_interval: float
    """Cycles from the start of a CTA on an SM until that of the next."""
    turnover: float
    """From the end of a CTA until the first instruction of the next."""
    launch_us: float
    """What an empty kernel takes between two events, as calls are timed."""
    next_launch_us: float
    """What an empty kernel adds to a call that launches others."""

    @classmethod
    def measured(cls, of: Units, model: Model, mhz: float, active: float) -> Rates:
        """Return the rates of a GPU at a clock, while so many of its SMs are busy."""
        sms = model.sm_count
        other = model.most_mhz or mhz

        def at(name: str) -> float:
            """Return a quantity at the clock, on the line through both clocks that it was measured at."""
            first = of[name].value
            second = of.quantities.get(name + units.at(other))
            if second is None or other == of.sm_mhz:
                return first
            return first + (second.value - first) * (mhz - of.sm_mhz) / (other - of.sm_mhz)

        def least(port: float, all_sms: float) -> float:
            """Return the rate of an SM: that of its port, or its part of what all get together."""
            return min(port, all_sms * sms / active)

        def tma(what: str) -> float:
            return BOX / at(f"tma {what}, l2 cycles")

        def sector(what: str, sectors: int) -> float:
            alone = at(f"{what}, 1 cta") / sectors
            return max(alone, at(f"{what}, all sms") / sectors * active / sms)

        few = tma("load 16 KiB, 4 in flight, 1 ctas")
        many = tma(f"load 16 KiB, 4 in flight, {sms} ctas share, {sms} ctas")
        rows = of.matching(r"wgmma f16 n(\d+) smem, groups of 4, wait 1")
        mmas = {int(n): quantity.value for (n,), quantity in rows.items()}
        beside = _beside(of, mmas)
        arrive = of["mbarrier arrive, 1 warps"].value
        cycles_of_ns = mhz / 1000
        dram = at("read 8 x 1024 threads, dram") / (cycles_of_ns * sms)
        written = at("write 8 x 1024 threads, dram") / (cycles_of_ns * sms)
        copied = at("copy 8 x 1024 threads, dram") / (cycles_of_ns * sms)
        load = at("load latency, l2 cycles")
        return cls(
            mhz=mhz,
            mma_rows=mmas,
            mma_latency=beside.latency,
            mma_lost=beside.lost,
            mma_stolen=beside.stolen,
            beside_mma=beside.pipes,
            umma_rows=_umma_rows(of),
            tmem_bytes=of["tcgen05.ld"].value if "tcgen05.ld" in of else 0.0,
            tmem_latency=of["tcgen05.ld latency"].value if "tcgen05.ld latency" in of else 0.0,
            request=of["launch control"].value if "launch control" in of else 0.0,
            tma_issue=18.0,
            tma_latency=at("tma load 1 KiB, 1 in flight, 1 ctas, l2 cycles") - 1024 / few,
            dram_latency=at("load latency, dram cycles") - load,
            tma_port=few if active <= 8 else many,
            l2_bytes=least(few, BOX / at(f"tma load 16 KiB, 4 in flight, {sms} ctas, l2 cycles")),
            dram_bytes=least(few, dram),
            store_port=tma("store 16 KiB, 4 in flight, 1 ctas"),
            store_latency=at("tma store 16 KiB, 1 in flight, 1 ctas, l2 cycles")
            - at("tma store 16 KiB, 4 in flight, 1 ctas, l2 cycles"),
            l2_write_bytes=least(
                tma("store 16 KiB, 4 in flight, 1 ctas"), tma(f"store 16 KiB, 4 in flight, {sms} ctas")
            ),
            dram_write_bytes=written * sms / active,
            load_latency=load,
            load_sector=sector("warp load 16 bytes a lane, 1 rows", ACCESS // SECTOR),
            load_line=sector("warp load 4 bytes a lane, 8 rows", 8),
            store_sector=sector("warp store 16 bytes a lane, 1 rows", ACCESS // SECTOR),
            partial_sector=sector("warp store 4 bytes a lane, 8 rows", 8),
            dram_sector=SECTOR / (dram * sms / active),
            dram_mix=2 / (1 / dram + 1 / written) / copied - 1,
            arrive=arrive,
            wake=of["hand over, mbarrier"].value - arrive,
            barrier=of["sync_threads, 4 warps"].value,
            barrier_warp=(of["sync_threads, 32 warps"].value - of["sync_threads, 4 warps"].value) / 28,
            cluster=of["cluster barrier, 2 ctas"].value,
            descriptor=530.0,
            drain=424.0,
            start_interval=(
                of[f"launch, {10 * sms} ctas, 128 threads, 0 KiB"].value
                - of[f"launch, {sms} ctas, 128 threads, 0 KiB"].value
            )
            / 9
            * cycles_of_ns,
            turnover=of["wave of 40000 cycles, 384 threads, 200 KiB"].value * of.sm_mhz / 1000 - 40_000,
            launch_us=of["empty kernel between events"].value / 1000,
            next_launch_us=of["empty kernel more in a graph"].value / 1000,
        )

    def tcgen05(self, ctas: int, m: int, n: int, in_tensor_memory: bool) -> Umma:
        """Return what an instruction of tcgen05.mma takes; all types take the same for 32 bytes of K."""
        row = self.umma_rows.get((ctas, m, in_tensor_memory)) or self.umma_rows.get((ctas, 128 * ctas, False))
        if not row:
            raise error(DSLRuntimeError, "nothing is known of tcgen05.mma on this GPU")
        near = sorted(row, key=lambda one: (abs(one - n), one))[:2]
        low, high = sorted(near) if len(near) > 1 else (near[0], near[0])
        part = (n - low) / (high - low) if high > low else 0.0
        one = row[low]
        other = row[high]
        interval = max(n / low * one.interval * 0.5, one.interval + (other.interval - one.interval) * part)
        return Umma(interval, one.latency + (other.latency - one.latency) * part)

    def umma_at_twice(self) -> dict[tuple[int, int, bool], dict[int, Umma]]:
        """Return instructions of tcgen05.mma that take half as long."""
        return {
            group: {n: Umma(one.interval / 2, one.latency - one.interval / 2) for n, one in row.items()}
            for group, row in self.umma_rows.items()
        }

    def mma(self, n: int) -> float:
        """Return the cycles of a WGMMA whose K has 32 bytes."""
        measured = sorted(self.mma_rows)
        for low, high in itertools.pairwise(measured):
            if low <= n <= high:
                part = (n - low) / (high - low)
                return self.mma_rows[low] * (1 - part) + self.mma_rows[high] * part
        return self.mma_rows[measured[-1]] * n / measured[-1]


@dataclasses.dataclass(frozen=True)
class _Beside:
    """What a WGMMA and other units take of each other."""

    latency: float = 0.0
    lost: float = 0.0
    stolen: float = 0.0
    pipes: dict[str, float] = dataclasses.field(default_factory=dict)


def _beside(of: Units, mmas: dict[int, float]) -> _Beside:
    if not mmas:
        return _Beside()
    ffma = of["wgmma f16 n128 beside ffma, 1 cta"].value
    wgmma = of["wgmma f16 n256 beside tma, 1 cta"].value
    boxes = of["tma beside wgmma f16 n256, 1 cta"].value
    return _Beside(
        of["wgmma f16 n256 smem, groups of 1, wait 0"].value - mmas[256],
        (wgmma - mmas[256]) / wgmma * boxes / (BOX / 1024),
        (ffma - mmas[128]) / (CHAINS * ffma / of["ffma beside wgmma f16 n128, 1 cta"].value),
        {
            pipe: of[f"{name} beside wgmma f16 n128, 1 cta"].value / CHAINS / of[f"{alone} interval"].value
            for pipe, name, alone in BESIDE
        },
    )


def _umma_rows(of: Units) -> dict[tuple[int, int, bool], dict[int, Umma]]:
    rows: dict[tuple[int, int, bool], dict[int, Umma]] = {}
    name = r"tcgen05.mma cta_group (\d) m(\d+) n(\d+) (smem|tmem)"
    for (ctas, m, n, where), interval in of.matching(name).items():
        latency = of[f"tcgen05.mma cta_group {ctas} m{m} n{n} {where} latency"].value
        rows.setdefault((int(ctas), int(m), where == "tmem"), {})[int(n)] = Umma(interval.value, latency)
    return rows


def tensor_mhz(of: Units, model: Model, mhz: float) -> float:
    """Return the clock of the SMs while tensor cores run, where the driver says `mhz`: the chip lowers it without saying so."""
    held = of.quantities.get("clock under wgmma, random, all sms")
    if held is None:
        held = of.quantities.get("clock under tcgen05.mma")
        return mhz if held is None else mhz * held.value / of.sm_mhz
    low = held.value / of.sm_mhz
    most = model.most_mhz or mhz
    free = of.quantities.get("clock under wgmma, zeros, 1 cta" + units.at(most))
    high = low if free is None else free.value / most
    return mhz * (low + (high - low) * (mhz - of.sm_mhz) / max(1.0, most - of.sm_mhz))


def sustained_mhz(of: Units, model: Model, share: float) -> float:
    """Return the clock that the power limit allows for long while tensor cores are busy for a part of the time."""
    most = model.most_mhz or of.sm_mhz
    points = [(0.0, most)]
    if (steady := of.quantities.get("sustained clock under tcgen05.mma")) is not None:
        points.append((1.0, steady.value))
    for part, name in SUSTAINED:
        held = of.quantities.get(f"clock under wgmma, random, all sms{name}{units.at(most)}")
        if held is not None:
            points.append((part, held.value))
    for (low, first), (high, second) in itertools.pairwise(points):
        if low <= share <= high:
            return first + (second - first) * (share - low) / (high - low)
    return points[-1][1]
