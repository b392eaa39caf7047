"""D = epilogue(A B): matrix products on the tensor cores every GPU since sm_80 has (`mma.sync`).

A block of threads computes a tile of D. Tiles of A and B stream through a ring of buffers in shared memory, filled by
`cp.async` several steps ahead; matrices are loaded from there a step ahead of the multiplications. Shared memory is
swizzled, so that neither the copies in nor the loads out hit a bank twice. What is left of the problem beyond whole tiles
is filled with zeros.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .. import cute, utils
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.target import target_name
from ..base_dsl.typing import (
    BFloat16,
    Boolean,
    Float8E4M3FN,
    Float8E5M2,
    Float16,
    Float32,
    Int8,
    Int32,
    Int64,
    Uint8,
)
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp, cpasync, warp
from . import arrays
from .smem import swizzled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Tiling", "gemm"]

_FLOAT8 = (Float8E4M3FN, Float8E5M2)
_GROUP = 8
"""So many rows of tiles are computed side by side, to find each other's operands in the L2 cache."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How a product is cut: the tile of a block, its warps over M and N, and the buffers of the ring."""

    block_mnk: tuple[int, int, int] = (128, 128, 32)
    warps_mn: tuple[int, int] = (2, 2)
    stages: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_mn[0] * self.warps_mn[1]

    def smem_bytes(self, bits: int, out_bits: int) -> int:
        """Shared memory of a block: the ring, or the tile of D after it."""
        m, n, k = self.block_mnk
        return max((m + n) * k * self.stages * bits // 8, m * n * out_bits // 8)

    def check(self, bits: int, k_step: int, out_bits: int, capacity: int) -> None:
        """Refuse what cannot work for operands of so many bits with instructions of so much K."""
        m, n, k = self.block_mnk
        rows, columns = 16 * self.warps_mn[0], 16 * self.warps_mn[1]
        arrays.require(
            m % rows == 0 and n % columns == 0,
            f"{self}: the warps cover {rows} x {columns} at once, which does not divide the tile",
        )
        arrays.require(
            k % k_step == 0 and k >= 2 * k_step,
            f"{self}: K of a tile is a multiple of the {k_step} of an instruction, and at least two of them",
        )
        arrays.require(self.stages >= 2, f"{self}: a ring has at least 2 buffers")
        arrays.require(1 <= self.threads <= 1024, f"{self}: a block has at most 1024 threads")
        for extent in (m, n, k):
            arrays.require(
                extent * bits % 128 == 0 and extent & (extent - 1) == 0,
                f"{self}: extents of the tile are powers of two and whole rows of 16 bytes",
            )
        used = self.smem_bytes(bits, out_bits)
        arrays.require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory, and a block has {capacity}",
            hint="fewer stages or a smaller tile",
        )


def _k_step(dtype: Any) -> int:
    """K of an instruction: 32 bytes of it."""
    return 256 // dtype.width


@dataclasses.dataclass(frozen=True)
class _Operand:
    """A or B: its elements, whether K is contiguous, and how many elements are copied at once."""

    dtype: Any
    k_major: bool
    width: int


class _Gemm:
    """The kernel for operands of some kinds."""

    def __init__(
        self, a: _Operand, b: _Operand, out_dtype: Any, out_width: int, tiling: Tiling, combine: Callable[..., Any]
    ) -> None:
        self.a = a
        self.b = b
        self.out_dtype = out_dtype
        self.out_width = out_width
        self.tiling = tiling
        self.combine = combine

    @property
    def acc_dtype(self) -> Any:
        """What sums are made in."""
        return Int32 if self.a.dtype in (Int8, Uint8) else Float32

    def mma(self) -> Any:
        """The tiled MMA."""
        dtype, (warps_m, warps_n) = self.a.dtype, self.tiling.warps_mn
        if dtype in (Float16, BFloat16):
            op: Any = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        elif dtype is Float32:
            op = warp.MmaTF32Op((16, 8, 8))
        elif dtype in _FLOAT8:
            op = warp.MmaFP8Op(dtype, Float32, (16, 8, 32), b_dtype=self.b.dtype)
        else:
            op = warp.MmaI8Op(dtype, self.b.dtype, Int32, (16, 8, 32))
        # 16 columns for a warp: four matrices of B are loaded at a time
        return cute.make_tiled_mma(op, (warps_m, warps_n, 1), (16 * warps_m, 16 * warps_n, _k_step(dtype)))

    def gmem_copy(self, operand: _Operand, rows: int) -> Any:
        """How the threads copy a tile (rows, K) from global to shared memory, along its contiguous mode."""
        bits = operand.width * operand.dtype.width
        if bits >= 32:
            mode = cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS
            op: Any = cpasync.CopyG2SOp(mode, zero_fill=True)
        else:
            op = CopyUniversalOp()
        atom = cute.make_copy_atom(op, operand.dtype, num_bits_per_copy=bits)
        along = self.tiling.block_mnk[2] if operand.k_major else rows
        lanes = min(along // operand.width, self.tiling.threads)
        others = self.tiling.threads // lanes
        if operand.k_major:
            threads = cute.make_layout((others, lanes), stride=(lanes, 1))
            return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, operand.width)))
        threads = cute.make_layout((lanes, others), stride=(1, lanes))
        return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((operand.width, 1)))

    def smem_copy(self, operand: _Operand) -> Any:
        """How fragments are read from shared memory: as matrices where the hardware has them."""
        bits = operand.dtype.width
        if operand.k_major:
            op = warp.LdMatrix8x16x8bOp(False, 4) if bits == 8 else warp.LdMatrix8x8x16bOp(False, 4)
            return cute.make_copy_atom(op, operand.dtype)
        if bits == 16:
            return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), operand.dtype)
        return cute.make_copy_atom(CopyUniversalOp(), operand.dtype, num_bits_per_copy=bits)

    def smem_layout(self, operand: _Operand, rows: int) -> Any:
        """The ring of tiles (rows, K, stages)."""
        return swizzled(operand.dtype, (rows, self.tiling.block_mnk[2], self.tiling.stages), int(operand.k_major))

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32, stream: Int64
    ):
        a = self.arranged(a, [1, 2, 0], self.a.width)  # (M, K, L)
        b = self.arranged(b, [2, 1, 0], self.b.width)  # (N, K, L)
        d = self.arranged(d, [1, 2, 0], self.out_width)  # (M, N, L)
        extras = [self.arranged(x, [1, 2, 0], 1) for x in extras]
        block_m, block_n, _ = self.tiling.block_mnk
        tiles = cute.ceil_div(d.shape[0], block_m) * cute.ceil_div(d.shape[1], block_n)
        self.kernel(a, b, d, extras, alpha, beta).launch(
            grid=(tiles, d.shape[2], 1), block=(self.tiling.threads, 1, 1), stream=stream
        )

    def arranged(self, x: Any, modes: list[int], width: int) -> Any:
        """A tensor with its modes in another order, strides known to be multiples of the width of an access."""
        layout = cute.select(x.layout, mode=modes)
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(layout.shape, stride=stride))

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32):
        thread = arch.thread_idx()[0]
        number, batch, _ = arch.block_idx()
        block_m, block_n, block_k = self.tiling.block_mnk
        tile_m, tile_n = self.place(number, cute.ceil_div(d.shape[0], block_m), cute.ceil_div(d.shape[1], block_n))
        mma = self.mma()

        # Shared memory: the ring of A, then that of B; later D in the same place.
        a_layout, b_layout = self.smem_layout(self.a, block_m), self.smem_layout(self.b, block_n)
        bytes_used = self.tiling.smem_bytes(max(self.a.dtype.width, self.b.dtype.width), self.out_dtype.width)
        memory = utils.SmemAllocator().allocate(bytes_used, 128)
        a_ring = cute.make_tensor(cute.recast_ptr(memory, dtype=self.a.dtype), a_layout)
        b_start = cute.cosize(a_layout) * self.a.dtype.width // 8
        b_ring = cute.make_tensor(cute.recast_ptr(memory + b_start, dtype=self.b.dtype), b_layout)

        # What this thread copies: (values, M or N, K, tile of K) to (values, M or N, K, stage).
        a_copy = self.gmem_copy(self.a, block_m).get_slice(thread)
        b_copy = self.gmem_copy(self.b, block_n).get_slice(thread)
        a_tiles = cute.local_tile(a[None, None, batch], (block_m, block_k), (tile_m, None))
        b_tiles = cute.local_tile(b[None, None, batch], (block_n, block_k), (tile_n, None))
        a_places = cute.local_tile(cute.make_identity_tensor(a.shape[:2]), (block_m, block_k), (tile_m, None))
        b_places = cute.local_tile(cute.make_identity_tensor(b.shape[:2]), (block_n, block_k), (tile_n, None))
        a_from, a_to, a_coords = a_copy.partition_S(a_tiles), a_copy.partition_D(a_ring), a_copy.partition_S(a_places)
        b_from, b_to, b_coords = b_copy.partition_S(b_tiles), b_copy.partition_D(b_ring), b_copy.partition_S(b_places)
        k_tiles = cute.ceil_div(a.shape[1], block_k)
        stages = self.tiling.stages

        for stage in range_constexpr(stages - 1):
            self.fetch(a_copy, a_from, a_to, a_coords, a.shape[:2], stage, stage)
            self.fetch(b_copy, b_from, b_to, b_coords, b.shape[:2], stage, stage)
            arch.cp_async_commit_group()

        # What this thread multiplies: fragments of a whole tile, loaded one step in K ahead.
        part = mma.get_slice(thread)
        a_frag = mma.make_fragment_A(part.partition_A(a_ring[None, None, 0]))
        b_frag = mma.make_fragment_B(part.partition_B(b_ring[None, None, 0]))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((block_m, block_n)), self.acc_dtype)
        acc.fill(0)
        a_load = cute.make_tiled_copy_A(self.smem_copy(self.a), mma).get_slice(thread)
        b_load = cute.make_tiled_copy_B(self.smem_copy(self.b), mma).get_slice(thread)
        a_matrices, a_regs = a_load.partition_S(a_ring), a_load.retile(a_frag)
        b_matrices, b_regs = b_load.partition_S(b_ring), b_load.retile(b_frag)
        steps = cute.size(a_frag, mode=[2])

        arch.cp_async_wait_group(stages - 2)
        arch.sync_threads()
        cute.copy(a_load, a_matrices[None, None, 0, 0], a_regs[None, None, 0])
        cute.copy(b_load, b_matrices[None, None, 0, 0], b_regs[None, None, 0])

        reading, filling = Int32(0), Int32(stages - 1)
        for tile in range(k_tiles):
            for step in range_constexpr(steps):
                if const_expr(step == steps - 1):
                    # The next tile has arrived, and everybody is done with the one before this.
                    reading = reading + 1 if reading + 1 < stages else Int32(0)
                    arch.cp_async_wait_group(stages - 2)
                    arch.sync_threads()
                following = (step + 1) % steps
                cute.copy(a_load, a_matrices[None, None, following, reading], a_regs[None, None, following])
                cute.copy(b_load, b_matrices[None, None, following, reading], b_regs[None, None, following])
                if const_expr(step == 0):
                    # Past the last tile this writes zeros: no branch, and nothing undefined is ever read.
                    self.fetch(a_copy, a_from, a_to, a_coords, a.shape[:2], tile + (stages - 1), filling)
                    self.fetch(b_copy, b_from, b_to, b_coords, b.shape[:2], tile + (stages - 1), filling)
                    arch.cp_async_commit_group()
                    filling = filling + 1 if filling + 1 < stages else Int32(0)
                cute.gemm(mma, acc, a_frag[None, None, step], b_frag[None, None, step], acc)

        arch.cp_async_wait_group(0)
        arch.sync_threads()
        self.finish(part, thread, acc, memory, d[None, None, batch], [x[None, None, batch] for x in extras],
                    alpha, beta, tile_m, tile_n)  # fmt: skip

    @cute.jit
    def place(self, number: Int32, tiles_m: Int32, tiles_n: Int32):
        """The tile of a block: down `_GROUP` rows of tiles, then on to the next column."""
        whole = _GROUP * tiles_n
        first = number // whole * _GROUP
        rows = min(tiles_m - first, Int32(_GROUP))
        return first + number % whole % rows, number % whole // rows

    @cute.jit
    def fetch(
        self,
        copy: Any,
        source: cute.Tensor,
        target: cute.Tensor,
        coords: cute.Tensor,
        shape: Any,
        tile: Any,
        stage: Any,
    ):
        """Begin to copy a tile into a buffer, zeros for what lies outside."""
        values, rows, columns = source.shape[0][1], cute.size(source, mode=[1]), cute.size(source, mode=[2])
        inside = cute.make_rmem_tensor((values, rows, columns), Boolean)
        for v in range_constexpr(cute.size(values)):
            for i in range_constexpr(rows):
                for j in range_constexpr(columns):
                    inside[v, i, j] = cute.elem_less(coords[(0, v), i, j, tile], shape)
        if const_expr(isinstance(copy.op, cpasync.CopyG2SOp)):
            cute.copy(copy, source[None, None, None, tile], target[None, None, None, stage], pred=inside)
        else:
            held = cute.make_fragment_like(target[None, None, None, 0])
            held.fill(0)
            cute.copy(copy, source[None, None, None, tile], held, pred=inside)
            cute.copy(copy, held, target[None, None, None, stage])

    @cute.jit
    def finish(
        self, part: Any, thread: Int32, acc: cute.Tensor, memory: Any, d: cute.Tensor, extras: Any, alpha: Float32,
        beta: Float32, tile_m: Int32, tile_n: Int32,
    ):  # fmt: skip
        """Combine the sums with the other tensors, and write D by way of shared memory, in whole rows."""
        block_m, block_n, _ = self.tiling.block_mnk
        where, shape = (tile_m, tile_n), d.shape
        places = cute.local_tile(cute.make_identity_tensor(shape), (block_m, block_n), where)
        others = []
        if const_expr(len(extras) > 0):
            coords = part.partition_C(places)
            inside = cute.make_rmem_tensor(acc.shape, Boolean)
            for i in range_constexpr(cute.size(acc)):
                inside[i] = cute.elem_less(coords[i], shape)
            for x in extras:
                held = cute.make_rmem_tensor(acc.shape, x.element_type)
                held.fill(0)
                atom = cute.make_copy_atom(CopyUniversalOp(), x.element_type, num_bits_per_copy=x.element_type.width)
                cute.copy(atom, part.partition_C(cute.local_tile(x, (block_m, block_n), where)), held, pred=inside)
                others.append(held.load())
        result = cute.make_rmem_tensor(acc.shape, self.out_dtype)
        result.store(self.combine(acc.load(), alpha, beta, *others).to(self.out_dtype))

        staged = cute.make_tensor(
            cute.recast_ptr(memory, dtype=self.out_dtype), swizzled(self.out_dtype, (block_m, block_n), 1)
        )
        cute.autovec_copy(result, part.partition_C(staged))
        arch.sync_threads()
        width = self.out_width
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=width * self.out_dtype.width)
        lanes = min(block_n // width, self.tiling.threads)
        threads = cute.make_layout((self.tiling.threads // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, width))).get_slice(thread)
        d_part = copy.partition_D(cute.local_tile(d, (block_m, block_n), where))
        s_part, coords = copy.partition_S(staged), copy.partition_S(places)
        held = cute.make_fragment_like(s_part)
        cute.copy(copy, s_part, held)
        rows, columns = cute.size(d_part, mode=[1]), cute.size(d_part, mode=[2])
        inside = cute.make_rmem_tensor((1, rows, columns), Boolean)
        for i in range_constexpr(rows):
            for j in range_constexpr(columns):
                inside[0, i, j] = cute.elem_less(coords[0, i, j], shape)
        cute.copy(copy, held, d_part, pred=inside)


_kernel = functools.lru_cache(maxsize=1024)(_Gemm)


# --- the function ----------------------------------------------------------------------------------------------------


def _identity(x: Any) -> Any:
    return x


def _relu(x: Any) -> Any:
    return cute.where(x > 0.0, x, cute.full_like(x, 0.0))


def _silu(x: Any) -> Any:
    return x / (cute.math.exp(-x) + 1.0)


def _gelu(x: Any) -> Any:
    return x * 0.5 * (cute.math.erf(x * 0.7071067811865476) + 1.0)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": _relu, "silu": _silu, "gelu": _gelu}


@functools.lru_cache(maxsize=256)
def _combiner(
    has_c: bool, has_bias: bool, activation: Callable[[Any], Any], epilogue: Callable[..., Any] | None, scaled: bool
) -> Callable[..., Any]:
    """The function of a thread's sums and its parts of the other tensors."""

    def combine(acc: Any, alpha: Any, beta: Any, *others: Any) -> Any:
        rest = [x if x.dtype is Float32 else x.to(Float32) for x in others]
        value = acc.to(Float32) if scaled and acc.dtype is not Float32 else acc
        if scaled:
            value = value * alpha
        if has_c:
            value = value + rest.pop(0) * beta
        if has_bias:
            value = value + rest.pop(0)
        value = activation(value)
        return value if epilogue is None else epilogue(value, *rest)

    return combine


def gemm(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    c: Any = None,
    bias: Any = None,
    activation: str | Callable[[Any], Any] | None = None,
    epilogue: Callable[..., Any] | None = None,
    extras: Sequence[Any] = (),
    tiling: Tiling | None = None,
) -> Any:
    """`epilogue(activation(alpha * a @ b + beta * c + bias), *extras)`, written to `out` or to a new array.

    `a` is (M, K) or (L, M, K), `b` is (K, N) or (L, K, N), each contiguous along either of its last two modes; one of
    them may lack L. Elements: f16, bf16, f32 (multiplied as TF32), 8-bit floats, 8-bit integers. `c`, `bias` and `extras`
    are broadcast to the result: a bias of N is a row. `activation` is "relu", "silu", "gelu" or a function of a value;
    `epilogue` a function of the value and of each of the `extras`, element by element, in f32. Sums are made in f32, of
    integers in i32; `out_dtype` is the framework's (default: the type of `a`; f32 for 8-bit floats, i32 for integers).
    """
    arrays.require(a.ndim in (2, 3) and b.ndim in (2, 3), f"gemm of arrays of {a.ndim} and {b.ndim} modes: 2 or 3")
    flat = a.ndim == b.ndim == 2
    a3, b3 = (x if x.ndim == 3 else x[None] for x in (a, b))
    batches = max(a3.shape[0], b3.shape[0])
    arrays.require(
        a3.shape[0] in (1, batches) and b3.shape[0] in (1, batches) and a3.shape[2] == b3.shape[1],
        f"gemm of shapes {tuple(a.shape)} and {tuple(b.shape)}",
        hint="(L, M, K) and (L, K, N)",
    )
    a3, b3 = (arrays.broadcast_to(x, (batches, *x.shape[1:])) for x in (a3, b3))
    shape = (batches, a3.shape[1], b3.shape[2])
    if out is None:
        out = arrays.empty(a, shape[1:] if flat else shape, out_dtype if out_dtype is not None else _default_out(a))
    out3 = out if out.ndim == 3 else out[None]
    arrays.require(tuple(out3.shape) == shape, f"gemm of shape {shape} into an array of {tuple(out.shape)}")
    if 0 in shape:
        return out
    arrays.require(a3.shape[2] > 0, "gemm with K = 0")

    others = [x for x in (c, bias) if x is not None] + list(extras)
    wide = [arrays.broadcast_to(x, shape) for x in others]
    if arrays.leading_mode(out3, (1, 2)) == 1:  # columns of D are contiguous: compute its transpose
        a3, b3, out3 = (_transposed(x) for x in (b3, a3, out3))
        wide = [_transposed(x) for x in wide]

    operands = [_operand(x, k_mode) for x, k_mode in ((a3, 2), (b3, 1))]
    leading = arrays.leading_mode(out3, (2,))
    arrays.require(leading == 2, f"gemm into strides {arrays.strides(out)}: rows or columns are contiguous")
    width = arrays.access_width(out3, 2)
    tensors = [arrays.dynamic(x, mode, o.width) for (x, mode, o) in operands]
    result = arrays.dynamic(out3, 2, width)
    chosen = activation if callable(activation) else _identity if activation is None else ACTIVATIONS.get(activation)
    arrays.require(chosen is not None, f"gemm with activation {activation!r}: one of {', '.join(ACTIVATIONS)}")
    assert chosen is not None
    kinds = [_typed(o, t) for (_, _, o), t in zip(operands, tensors, strict=True)]
    _check_types(kinds[0].dtype, kinds[1].dtype)
    integers = kinds[0].dtype in (Int8, Uint8)
    scaled = not integers or alpha != 1.0 or bool(others) or activation is not None or epilogue is not None
    dtype, out_bits, capacity = kinds[0].dtype, result.element_type.width, _smem_capacity()
    tiling = _tiling(dtype, out_bits, shape, capacity) if tiling is None else tiling
    tiling.check(dtype.width, _k_step(dtype), out_bits, capacity)
    combine = _combiner(c is not None, bias is not None, chosen, epilogue, scaled)
    kernel = _kernel(kinds[0], kinds[1], result.element_type, width, tiling, combine)
    shown = [arrays.dynamic(x, arrays.leading_mode(x, (0, 1, 2)), 1) for x in wide]
    kernel(*tensors, result, shown, float(alpha), float(beta), arrays.stream_of(a))
    return out


@functools.lru_cache(maxsize=8)
def _capacity_of(target: str) -> int:
    return utils.get_smem_capacity_in_bytes()


def _smem_capacity() -> int:
    """Shared memory a block can have where the next call runs."""
    return _capacity_of(target_name())


def _transposed(x: Any) -> Any:
    return x.swapaxes(1, 2)


def _operand(x: Any, k_mode: int) -> tuple[Any, int, _Operand]:
    """An operand, its contiguous mode and its kind, the element type still to be read from it."""
    leading = arrays.leading_mode(x, (3 - k_mode, k_mode))
    if leading is None and 1 in x.shape[1:]:  # a row or a column: its strides may be anything
        x = arrays.contiguous(x)
        leading = arrays.leading_mode(x, (3 - k_mode, k_mode))
    if leading is None:
        raise arrays.refusal(
            f"gemm of strides {arrays.strides(x)}", hint="one of the last two modes is contiguous: make a copy"
        )
    return x, leading, _Operand(None, leading == k_mode, arrays.access_width(x, leading))


def _typed(operand: _Operand, tensor: Any) -> _Operand:
    return dataclasses.replace(operand, dtype=tensor.element_type)


def _check_types(a: Any, b: Any) -> None:
    mixed = {a, b} <= set(_FLOAT8) or {a, b} <= {Int8, Uint8}
    arrays.require(
        mixed or (a is b and a in (Float16, BFloat16, Float32)),
        f"gemm of {a.__name__} and {b.__name__}",
        hint="both Float16, BFloat16 or Float32, or 8-bit floats, or 8-bit integers",
    )


def _default_out(a: Any) -> Any:
    """The type of the result in the framework of `a`; None: that of `a`."""
    name = str(a.dtype).rpartition(".")[2]
    wanted = "float32" if name.startswith("float8") else "int32" if name in ("int8", "uint8") else None
    if wanted is None:
        return None
    if arrays.is_torch(a):
        import torch

        return getattr(torch, wanted)
    import numpy as np

    return np.dtype(wanted)


_CANDIDATES = (
    ((128, 256, 4), (2, 4), 3),
    ((128, 128, 2), (2, 2), 4),
    ((64, 64, 2), (2, 2), 4),
)
"""Tilings, the best for large problems first; K in steps of an instruction."""
_BLOCKS_ENOUGH = 96
"""Fewer tiles than that leave much of a large GPU idle."""


@functools.lru_cache(maxsize=1024)
def _tiling(dtype: Any, out_bits: int, shape: tuple[int, int, int], capacity: int) -> Tiling:
    """The tiling of the largest tiles that fit in shared memory and leave enough of them for a GPU to be busy."""
    batches, m, n = shape
    tiling = Tiling((64, 64, 2 * _k_step(dtype)), (2, 2), 2)
    for (tile_m, tile_n, steps), warps, stages in _CANDIDATES:
        tiling = Tiling((tile_m, tile_n, steps * _k_step(dtype)), warps, stages)
        blocks = batches * -(-m // tile_m) * -(-n // tile_n)
        if tiling.smem_bytes(dtype.width, out_bits) <= capacity and blocks >= _BLOCKS_ENOUGH:
            break
    return tiling
