"""Epilogues by threads: accumulators go through shared memory, and results are written in whole rows.

An epilogue gets the accumulators of each thread, whatever the main loop was; shared memory is free by then.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Boolean, Int32, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ....utils.tiles import swizzled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .... import Float32
    from ...parts.accumulator import RegisterAccumulator


class EpilogueTensors(NamedTuple):
    """The results and epilogue inputs of a kernel, (M, N, L) or (M, N) of a batch, and its scalars.

    With TMA stores, each result has an atom that stores a part of a tile, and TMA coordinates (M, N, L).
    `row_partials`: the row reductions of each tile in N, (tiles, L, M).
    """

    outs: Any
    inputs: list[cute.Tensor]
    alpha: Float32
    beta: Float32
    tma_stores: Sequence[cute.CopyAtom] = ()
    tma_coords: Sequence[cute.Tensor] = ()
    row_partials: Sequence[cute.Tensor] = ()

    def batch(self, index: Int32 | int) -> EpilogueTensors:
        """Return the tensors (M, N) of a batch."""
        outs, inputs = ([x[None, None, index] for x in tensors] for tensors in (self.outs, self.inputs))
        return self._replace(outs=outs, inputs=inputs)


@dataclasses.dataclass(eq=False)
class Sm80Epilogue:
    """Writes the values of combine(acc, alpha, beta, *inputs) of a tile, each to a result.

    With `split_k` the CTAs of a cluster add their accumulators first.

    `input_widths`: how many neighbours in N of each epilogue input one access loads; None: accumulators are at most
    scaled. `swap_ab`: accumulators are those of the transposed tile.
    """

    tile: tuple[int, int]
    threads: int
    split_k: int
    acc_dtype: type[cute.Numeric]
    out_types: tuple[type[cute.Numeric], ...]
    out_width: int
    combine: Callable[..., Any]
    input_widths: tuple[int, ...] | None
    swap_ab: bool = False
    load_registers: int = 64
    """Registers for inputs and accumulators that are loaded before results are written."""

    @property
    def out_dtype(self) -> type[cute.Numeric]:
        return self.out_types[0]

    @cute.jit
    def write(
        self,
        acc: RegisterAccumulator,
        thread: Int32,
        rank: Int32 | int,
        smem: cute.Pointer,
        tensors: EpilogueTensors,
        tile: tuple[Int32, Int32],
    ):
        """Write the results of a tile. Shared memory is free by now."""
        truth = self.out_dtype.width < 8  # has a byte of its own in memory, and no layout in shared memory
        if const_expr(self.split_k > 1 or self.input_widths is not None or truth or self.swap_ab):
            self.write_combined(acc, thread, rank, smem, tensors, tile)
        else:
            result = cute.make_rmem_tensor(acc.fragment.shape, self.out_dtype)
            result.store(self.combine(acc.fragment.load(), tensors.alpha, tensors.beta)[0].to(self.out_dtype))
            self.write_scaled(acc._replace(fragment=result), thread, smem, tensors.outs[0], tile)

    @cute.jit
    def write_scaled(
        self, results: RegisterAccumulator, thread: Int32, smem: cute.Pointer, d: cute.Tensor, tile: tuple[Int32, Int32]
    ):
        """Write results that are in registers by way of shared memory."""
        coords = cute.local_tile(cute.make_identity_tensor(d.shape), self.tile, tile)
        staged = cute.make_tensor(cute.recast_ptr(smem, dtype=self.out_dtype), swizzled(self.out_dtype, self.tile, 1))
        cute.autovec_copy(results.fragment, results.partition(staged))
        arch.sync_threads()
        copy = self.row_copy(self.out_dtype, self.out_width).get_slice(thread)
        target = copy.partition_D(cute.local_tile(d, self.tile, tile))
        source = copy.partition_S(staged)
        coords = copy.partition_S(coords)
        fragment = cute.make_fragment_like(source)
        cute.copy(copy, source, fragment)
        rows = cute.size(target, mode=[1])
        columns = cute.size(target, mode=[2])
        inside = cute.make_rmem_tensor((1, rows, columns), Boolean)
        for i in range_constexpr(rows):
            for j in range_constexpr(columns):
                inside[0, i, j] = cute.elem_less(coords[0, i, j], d.shape)
        cute.copy(copy, fragment, target, pred=inside)

    @cute.jit
    def write_combined(
        self,
        acc: RegisterAccumulator,
        thread: Int32,
        rank: Int32 | int,
        smem: cute.Pointer,
        tensors: EpilogueTensors,
        tile: tuple[Int32, Int32],
    ):
        """Combine accumulators with the epilogue inputs and write the results, some vectors of a thread at a time.

        Split-K: each CTA of the cluster adds the accumulators of all, in order, for a part of the tile.
        """
        split_k = self.split_k
        outs = tensors.outs
        inputs = tensors.inputs
        layout = swizzled(self.acc_dtype, self.tile, 1)
        staged = cute.make_tensor(cute.recast_ptr(smem, dtype=self.acc_dtype), layout)
        slots = acc.partition(cute.select(staged, mode=[1, 0]) if const_expr(self.swap_ab) else staged)
        cute.autovec_copy(acc.fragment, slots)
        self.sync()

        width = min(self.out_width, 128 // self.acc_dtype.width)
        load = self.access(self.acc_dtype, width)
        stores = [self.access(kind, width) for kind in self.out_types]
        copy = self.row_copy(self.acc_dtype, width).get_slice(thread)
        ctas = [
            staged if split_k == 1 else cute.make_tensor(arch.map_dsmem_ptr(staged.iterator, other), layout)
            for other in range(split_k)
        ]
        partials = [cute.group_modes(copy.partition_S(x), 1, 3) for x in ctas]  # (width, vectors)
        shape = outs[0].shape
        coords = cute.local_tile(cute.make_identity_tensor(shape), self.tile, tile)
        coords = cute.group_modes(copy.partition_S(coords), 1, 3)
        targets = [cute.group_modes(copy.partition_D(cute.local_tile(x, self.tile, tile)), 1, 3) for x in outs]
        sources = [cute.group_modes(copy.partition_S(cute.local_tile(x, self.tile, tile)), 1, 3) for x in inputs]
        vectors = cute.size(coords, mode=[1])
        cta_vectors = -(-vectors // split_k)
        ahead = self.vectors_ahead(cta_vectors, width * (1 + len(inputs)))
        fragments = [cute.make_rmem_tensor((width, ahead), x.element_type) for x in inputs]
        total = cute.make_rmem_tensor((width, ahead), self.acc_dtype)
        loaded = cute.make_rmem_tensor((width, split_k), self.acc_dtype)
        inside = cute.make_rmem_tensor((ahead,), Boolean)
        for first in range(0, cta_vectors, ahead):
            for i in range_constexpr(ahead):
                number = rank + (first + i) * split_k
                vector = min(number, vectors - 1)
                inside[i] = cute.elem_less(coords[0, vector], shape) & (number < vectors)
                for source, fragment, elements in zip(sources, fragments, self.input_widths or ()):
                    fragment[None, i].fill(0)
                    if inside[i]:
                        atom = self.access(source.element_type, width if elements >= width else 1)
                        cute.copy(atom, source[None, vector], fragment[None, i])
                for other in range_constexpr(split_k):
                    cute.copy(load, partials[other][None, vector], loaded[None, other])
                total[None, i].store(loaded[None, 0].load())
                for other in range_constexpr(1, split_k):
                    total[None, i].store(total[None, i].load() + loaded[None, other].load())
            if const_expr(split_k > 1 and ahead == cta_vectors):  # before stores, which would have to arrive first
                arch.cluster_arrive()
            for i in range_constexpr(ahead):
                values = [x[None, i].load() for x in fragments]
                results = self.combine(total[None, i].load(), tensors.alpha, tensors.beta, *values)
                vector = min(rank + (first + i) * split_k, vectors - 1)
                for value, kind, store, target in zip(results, self.out_types, stores, targets):
                    result = cute.make_rmem_tensor((width,), kind)
                    result.store(value.to(kind))
                    cute.copy(store, result, target[None, vector], pred=inside[i])
        if const_expr(split_k > 1):  # nobody's shared memory is read any more
            if const_expr(ahead < cta_vectors):
                arch.cluster_arrive()
            arch.cluster_wait()

    def sync(self) -> None:
        """Wait for all threads that share a tile."""
        if self.split_k > 1:
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()

    def row_copy(self, dtype: type[cute.Numeric], width: int) -> cute.TiledCopy:
        """Return the tiled copy of a tile by rows, some neighbours to a thread."""
        lanes = math.gcd(self.tile[1] // width, self.threads)
        layout = cute.make_layout((self.threads // lanes, lanes), stride=(lanes, 1))
        return cute.make_tiled_copy_tv(self.access(dtype, width), layout, cute.make_layout((1, width)))

    def access(self, dtype: type[cute.Numeric], width: int) -> cute.CopyAtom:
        """Return the copy atom of some elements."""
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width * max(8, dtype.width))

    def vectors_ahead(self, count: int, registers: int) -> int:
        """Return how many vectors of some registers are loaded before the first is used: a divisor of their number."""
        most = max(1, self.load_registers // registers)
        return max(n for n in range(1, count + 1) if count % n == 0 and n <= most)


class SimtEpilogue(Sm80Epilogue):
    """Writes results that are at most scaled from registers: a thread has four neighbours in N."""

    vector = 4

    @cute.jit
    def write_scaled(
        self, results: RegisterAccumulator, thread: Int32, smem: cute.Pointer, d: cute.Tensor, tile: tuple[Int32, Int32]
    ):
        width = min(self.vector, self.out_width)
        target = results.partition(cute.local_tile(d, self.tile, tile))  # (1, (4, M), (4, N))
        coords = results.partition(cute.local_tile(cute.make_identity_tensor(d.shape), self.tile, tile))
        atom = self.access(self.out_dtype, width)
        for i in range_constexpr(cute.size(target, mode=[1])):
            targets = cute.logical_divide(target[0, i, None], width)  # (width, N)
            vectors = cute.logical_divide(results.fragment[0, i, None], width)
            for j in range_constexpr(cute.size(targets, mode=[1])):
                inside = cute.elem_less(coords[0, i, j * width], d.shape)
                cute.copy(atom, vectors[None, j], targets[None, j], pred=inside)
