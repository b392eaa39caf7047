"""Products of groups of rows on sm_90a, in one kernel: blocks find out on the device which tiles there are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import Int32, cute, range_constexpr
from ....cute import arch
from ....utils import swizzled_tile
from ...dispatch import arrays, devices, launches
from . import sm90_cost
from .arguments import block_tensors, other_tensors
from .sm90 import Sm90GemmKernel
from .sm90_config import ATOM_M, MMA_WARPGROUPS
from .sm90_implementation import Sm90Gemm, batched, epilogue_of, tensors_of
from .tile_scheduler import PersistentTileScheduler, WorkTile

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .grouped_problem import GroupedGemmProblem
    from .sm90_config import Sm90GemmConfig

_WARP = 32


class GroupedTileScheduler(PersistentTileScheduler):
    """Tiles of up to `groups` groups (a power of two), whose bounds the device knows: where each ends, or (not `contiguous`) its rows.

    A tile's rows lie along M, or along N where operands are `swapped`. Where groups have `few` rows, a warp group that has none of a tile multiplies nothing,
    and the other has the tensor cores for itself. (With more, tiles of the same columns would drift apart, and read them from memory again.)
    """

    bounds = 1

    def __init__(
        self, tile: tuple[int, int], cluster_shape_mn: tuple[int, int], group: int, clusters: int, groups: int, contiguous: bool,
        swapped: bool, few: bool,
    ) -> None:  # fmt: skip
        super().__init__(tile, cluster_shape_mn, group, clusters)
        self.few = few
        self.groups = groups
        self.grouped = contiguous
        self.swapped = swapped

    @cute.jit
    def grid(self, d: Any):
        """Whether there are fewer tiles than multiprocessors is not known here."""
        return *self.cluster_shape_mn, self.clusters

    def divisors(self, d: Any) -> list[Any]:
        """None: how many rows a group has is not known here."""
        return []

    def begin(self, smem: Any, d: Any, bounds: Any) -> Any:
        """The result, and a table in shared memory: clusters of tiles before each group, and the bound of the group before it."""
        table = smem.allocate_tensor(Int32, cute.make_layout((self.groups + 1, 2)), 16)
        self.fill(table, bounds[0], d)
        arch.sync_threads()
        return d, table

    @cute.jit
    def fill(self, table: cute.Tensor, bounds: cute.Tensor, d: Any):
        """Let a warp make the table. Bounds that lead out of the array are taken as the nearest that do not."""
        lane, along = arch.lane_idx(), 1 if self.swapped else 0
        most, each = d.shape[along], self.tile_mn[along] * self.cluster_shape_mn[along]
        if arch.warp_idx() == 0:
            self.scan(table, bounds, lane, most, each)

    @cute.jit
    def scan(self, table: cute.Tensor, bounds: cute.Tensor, lane: Int32, most: Any, each: Any):
        before = Int32(0)
        for first in range_constexpr(0, self.groups, _WARP):
            group = first + lane
            rows, end = Int32(0), Int32(0)
            if group < bounds.shape[0]:
                end = self.within(bounds[group], most)
                rows = end
                if self.grouped and group > 0:
                    rows = max(end - self.within(bounds[group - 1], most), 0)
            tiles = cute.ceil_div(rows, each)
            for step in (1, 2, 4, 8, 16):  # of this group and those before it
                other = arch.shuffle_sync_up(tiles, step, mask_and_clamp=0)
                if lane >= step:
                    tiles = tiles + other
            table[group + 1, 0] = before + tiles
            table[group + 1, 1] = end
            before = before + arch.shuffle_sync(tiles, _WARP - 1)
        if lane < 2:
            table[0, lane] = 0

    @cute.jit
    def within(self, bound: Any, most: Any):
        return Int32(min(max(bound, 0), most))

    def count(self, tiles: Any) -> Any:
        d, table = tiles
        return table[self.groups, 0] * self.columns(d)

    def columns(self, d: Any) -> Any:
        """Clusters of tiles beside each other."""
        across = 0 if self.swapped else 1
        return cute.ceil_div(d.shape[across], self.tile_mn[across] * self.cluster_shape_mn[across])

    @cute.jit
    def tile(self, number: Any, tiles: Any):
        d, table = tiles
        columns = self.columns(d)
        group, step = Int32(0), self.groups
        for _ in range_constexpr(self.groups.bit_length() - 1):
            step = step // 2
            if table[group + step, 0] * columns <= number:
                group = group + step
        before = table[group, 0]
        row, column = swizzled_tile(number - before * columns, table[group + 1, 0] - before, columns, self.group)
        x, y, _ = arch.block_idx()
        m, n = (column, row) if self.swapped else (row, column)
        batch, start, rows = (
            (0, table[group, 1], table[group + 1, 1]) if self.grouped else (group, 0, table[group + 1, 1])
        )
        return WorkTile(
            m * self.cluster_shape_mn[0] + x, n * self.cluster_shape_mn[1] + y, batch, group, start, rows - start
        )


class Sm90GroupedGemm(Sm90Gemm):
    """`wgmma` on tiles that the copy engine loads, of groups that blocks look up."""

    def suits(self, problem: GroupedGemmProblem, device: Device) -> str | None:
        if problem.contiguous and not problem.operands()[0].k_major:
            return "rows of groups begin anywhere, and the copy engine loads from multiples of 16 bytes: a is contiguous in K"
        return super().suits(problem, device)

    def configs(self, problem: GroupedGemmProblem, device: Device) -> list[Sm90GemmConfig]:
        found: dict[Sm90GemmConfig, float] = {}
        for config in sm90_cost.candidates(problem.as_batch(), device, grouped=True):
            if config.split_k_cluster * config.split_k > 1:
                continue
            if config.tile_shape_mnk[0] == ATOM_M and not config.swap_ab:
                continue  # read columns twice as often; of few rows a tile of 128 multiplies half
            if _few(problem) and (config.pingpong or config.swap_ab):
                continue  # multiply rows that are not there, and were slower wherever they were measured
            if _few(problem) and problem.block_scales and (config.cluster_size > 1 or config.ab_stages < 5):
                continue  # sums of a stage are waited for: more of them have to be on their way, and not for two blocks at once
            if config.tile_shape_mnk[0] == 192 or (
                config.swap_ab and config.tile_shape_mnk[0] > MMA_WARPGROUPS * ATOM_M
            ):
                continue  # not measured for groups
            if config.cluster_shape_mn == (
                2,
                1,
            ):  # a group's last rows may fill one tile of two: clusters lie along columns
                config = dataclasses.replace(config, cluster_shape_mn=(1, 2), raster_group=2 * config.raster_group)
            # The table of many groups takes the place of stages.
            over = max(0, _smem_bytes(problem, config) - device.smem)
            stages = config.ab_stages - -(-over // config.stage_bytes(problem.dtype.width, bool(problem.block_scales)))
            if stages >= 3:
                config = dataclasses.replace(config, ab_stages=stages)
                found[config] = self.cost(problem, config, device)
        return sorted(found, key=lambda config: found[config])

    def cost(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, device: Device) -> float:
        return sm90_cost.total(self.cost_terms(problem, config, device))

    def cost_terms(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, device: Device) -> dict[str, float]:
        """As of groups of equal size, with the rows that tiles have besides where sizes differ."""
        found = sm90_cost.bounds(problem.as_batch(), config, device, grouped=True)
        rows, each = (
            problem.expected_rows,
            config.tile_shape_mnk[1] if config.swap_ab else config.tile_shape_mnk[0] * config.cluster_shape_mn[0],
        )
        halved = (
            _few(problem) and each == MMA_WARPGROUPS * ATOM_M and config.warpgroups_per_tile > 1 and not config.swap_ab
        )
        steps = ATOM_M if halved else each, each
        multiplied, loaded = (max(rows + step / 2, step) / (-(-rows // each) * each) for step in steps)
        grown = {"products": multiplied, "power": multiplied, "L2 cache": loaded}
        return {name: us * grown.get(name, 1.0) for name, us in found.items()}

    def check(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, device: Device) -> None:
        super().check(problem, config, device)
        arrays.require(
            config.split_k_cluster * config.split_k == 1 and not config.transpose_out,
            f"{config}: K of groups is not cut into parts, and what is stored of a group begins and ends anywhere",
            hint="split_k_cluster=1, split_k=1, transpose_out=False",
        )
        used = _smem_bytes(problem, config)
        arrays.require(
            used <= device.smem,
            f"{config} takes {used} bytes of shared memory with a table of {problem.num_groups} groups, and a block has {device.smem}",
            hint="fewer stages or a smaller tile",
        )

    def run(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, given: Any) -> None:
        a, b = problem.operands()
        follow, tile = problem.fusion, config.tile_shape_mnk[:2]
        out, acc = problem.out_types, problem.acc_dtype
        differ = batched(problem.a), problem.num_groups > 1, batched(problem.out)
        clusters, groups = devices.max_active_clusters(config.cluster_size), _table_groups(problem)
        widths, few = None if follow.plain else problem.epilogue_input_widths, _few(problem)

        def make() -> Sm90GemmKernel:
            scheduler = GroupedTileScheduler(
                tile,
                config.cluster_shape_mn,
                config.raster_group,
                clusters,
                groups,
                problem.contiguous,
                config.swap_ab,
                few,
            )
            epilogue = epilogue_of(problem, config, widths, problem.contiguous)
            return Sm90GemmKernel(
                a, b, differ, problem.promoted, bool(problem.block_scales), config, scheduler, epilogue
            )

        kinds = (a.dtype, a.k_major, b.dtype, b.k_major, acc, out)
        width = problem.out_width if config.smem_epilogue or problem.contiguous else 0
        key = (
            GroupedTileScheduler, kinds, differ, problem.promoted, bool(problem.block_scales), config, clusters, groups, few, width, widths, follow.key,
        )  # fmt: skip
        kernel = launches.cached_kernel_of(follow.functions, make, *key)
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, given.group_bounds, *given.block_scales, *given.epilogue_inputs],
            [
                *tensors_of(problem, given), arrays.dynamic(given.group_bounds, 0, 1), *block_tensors(problem, given),
                *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip


def _few(problem: GroupedGemmProblem) -> bool:
    """Whether groups have so few rows that memory bounds the product."""
    return problem.expected_rows <= MMA_WARPGROUPS * ATOM_M


def _table_groups(problem: GroupedGemmProblem) -> int:
    """Groups that a table has room for."""
    return max(_WARP, arrays.power_of_two(problem.num_groups))


def _smem_bytes(problem: GroupedGemmProblem, config: Sm90GemmConfig) -> int:
    """Of a block: as for products, and the table."""
    own = config.smem_bytes(problem.dtype.width, problem.out.dtype.width, blocks=bool(problem.block_scales))
    return own + 8 * (_table_groups(problem) + 1)
