"""Functions of the rows of a matrix: softmax, RMSNorm, LayerNorm.

A row is held by some threads of a block, in registers where it fits: then memory is read once. Longer rows are read
chunk by chunk, again for each pass. Computed in f32.
"""

from __future__ import annotations

import functools
from typing import Any

from .. import cute
from ..base_dsl import sanitizing
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.target import target_name
from ..base_dsl.typing import BFloat16, Boolean, Float16, Float32, Int32, Int64
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp
from ..utils.reductions import reduce_in_block
from . import arrays

__all__ = ["layer_norm", "rms_norm", "softmax"]

_LOG2_E = 1.4426950408889634
_LOWEST = -3.0e38
"""Stands for no value in a maximum; finite, so that differences of two are numbers."""


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _maximum(a: Any, b: Any) -> Any:
    return arch.fmax(a, b)


def _sum(a: Any, b: Any) -> Any:
    return a + b


class _Rows:
    """The kernel of one of the functions, for rows of up to a length."""

    def __init__(
        self, kind: str, dtype: Any, out_dtype: Any, width: int, threads: int, vectors: int, whole: bool
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        self.out_dtype = out_dtype
        self.width = width
        self.threads = threads
        """Threads of a row."""
        self.vectors = vectors
        """Vectors of `width` elements a thread holds."""
        self.whole = whole
        """Whether they hold the row."""
        self.rows = max(1, 128 // threads)
        """Rows of a block."""

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, weight: Any, bias: Any, eps: Float32, stream: Int64):
        x, y = self.aligned(x), self.aligned(y)
        self.kernel(x, y, weight, bias, eps).launch(
            grid=(cute.ceil_div(x.shape[0], self.rows), 1, 1), block=(self.rows * self.threads, 1, 1), stream=stream
        )

    def aligned(self, x: Any) -> Any:
        """A matrix whose rows begin at a multiple of the width of an access."""
        stride = x.stride[0]
        stride = stride if isinstance(stride, int) else cute.assume(stride, divby=self.width)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=(stride, 1)))

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, weight: Any, bias: Any, eps: Float32):
        thread = arch.thread_idx()[0]
        row = arch.block_idx()[0] * self.rows + thread // self.threads
        column = thread % self.threads * self.width
        exists = row < x.shape[0]
        place = row if exists else Int32(0)
        x, y, n = x[place, None], y[place, None], x.shape[1]
        step = self.threads * self.vectors * self.width
        count = Float32(n)

        held = cute.make_rmem_tensor((self.width, self.vectors), Float32)
        inside = cute.make_rmem_tensor((self.width, self.vectors), Boolean)
        if const_expr(self.whole):
            self.read(x, held, inside, column, n, exists)

        # what is known of the row: softmax a maximum and a sum, norms a mean and a sum of squares
        first, second = Float32(_LOWEST) if const_expr(self.kind == "softmax") else Float32(0.0), Float32(0.0)
        if const_expr(self.kind == "softmax"):
            for start in range(0, n if const_expr(not self.whole) else 1, step):
                if const_expr(not self.whole):
                    self.read(x, held, inside, start + column, n, exists)
                values = cute.where(inside.load(), held.load(), cute.full_like(held, _LOWEST))
                highest = values.reduce(cute.ReductionOp.MAX, first, reduction_profile=0)
                parts = cute.math.exp2((values - highest) * _LOG2_E, fastmath=True)
                parts = cute.where(inside.load(), parts, cute.full_like(held, 0.0))
                second = second * cute.math.exp2((first - highest) * _LOG2_E, fastmath=True)
                second = parts.reduce(cute.ReductionOp.ADD, second, reduction_profile=0)
                first = highest
            highest = reduce_in_block(first, _maximum, self.threads, self.rows * self.threads)
            second = second * cute.math.exp2((first - highest) * _LOG2_E, fastmath=True)
            first = highest
            second = 1.0 / reduce_in_block(second, _sum, self.threads, self.rows * self.threads)
        else:
            if const_expr(self.kind == "layer_norm"):
                for start in range(0, n if const_expr(not self.whole) else 1, step):
                    if const_expr(not self.whole):
                        self.read(x, held, inside, start + column, n, exists)
                    first = held.load().reduce(cute.ReductionOp.ADD, first, reduction_profile=0)
                first = reduce_in_block(first, _sum, self.threads, self.rows * self.threads) / count
            for start in range(0, n if const_expr(not self.whole) else 1, step):
                if const_expr(not self.whole):
                    self.read(x, held, inside, start + column, n, exists)
                values = cute.where(inside.load(), held.load() - first, cute.full_like(held, 0.0))
                second = (values * values).reduce(cute.ReductionOp.ADD, second, reduction_profile=0)
            second = reduce_in_block(second, _sum, self.threads, self.rows * self.threads) / count
            second = cute.math.rsqrt(second + eps)

        for start in range(0, n if const_expr(not self.whole) else 1, step):
            if const_expr(not self.whole):
                self.read(x, held, inside, start + column, n, exists)
            if const_expr(self.kind == "softmax"):
                values = cute.math.exp2((held.load() - first) * _LOG2_E, fastmath=True) * second
            else:
                values = (held.load() - first) * second
            if const_expr(weight is not None):
                values = values * self.factors(weight, start + column, n)
            if const_expr(bias is not None):
                values = values + self.factors(bias, start + column, n)
            held.store(values)
            self.write(y, held, start + column, n, exists)

    @cute.jit
    def read(self, x: cute.Tensor, held: cute.Tensor, inside: cute.Tensor, column: Any, n: Any, exists: Any):
        """A thread's part of a chunk as f32, zeros where it ends; `inside` says where it does not."""
        atom = cute.make_copy_atom(
            CopyUniversalOp(), x.element_type, num_bits_per_copy=self.width * x.element_type.width
        )
        raw = cute.make_rmem_tensor((self.width, self.vectors), x.element_type)
        raw.fill(0)
        for v in range_constexpr(self.vectors):
            at = column + v * self.threads * self.width
            there = (at < n) & exists
            part = cute.local_tile(x, (self.width,), (at // self.width,))
            cute.copy(atom, part, raw[None, v], pred=there)
            for i in range_constexpr(self.width):
                inside[i, v] = there
        held.store(raw.load().to(Float32))

    @cute.jit
    def write(self, y: cute.Tensor, held: cute.Tensor, column: Any, n: Any, exists: Any):
        """The other way round."""
        atom = cute.make_copy_atom(
            CopyUniversalOp(), y.element_type, num_bits_per_copy=self.width * y.element_type.width
        )
        raw = cute.make_rmem_tensor((self.width, self.vectors), y.element_type)
        raw.store(held.load().to(y.element_type))
        for v in range_constexpr(self.vectors):
            at = column + v * self.threads * self.width
            part = cute.local_tile(y, (self.width,), (at // self.width,))
            cute.copy(atom, raw[None, v], part, pred=(at < n) & exists)

    @cute.jit
    def factors(self, weight: cute.Tensor, column: Any, n: Any):
        """The weights of a thread's part of a chunk."""
        held = cute.make_rmem_tensor((self.width, self.vectors), Float32)
        inside = cute.make_rmem_tensor((self.width, self.vectors), Boolean)
        self.read(weight, held, inside, column, n, Boolean(True))
        return held.load()


_kernel = functools.lru_cache(maxsize=1024)(_Rows)


def _shape_of(n: int, width: int) -> tuple[int, int, bool]:
    """Threads of a row, vectors of a thread, and whether they hold the row."""
    vectors = -(-n // width)
    threads = min(1024, _power_of_two(-(-vectors // 4)))
    each = _power_of_two(-(-vectors // threads))
    return (threads, each, True) if each * width <= 64 else (threads, 4, False)


_plans: dict[Any, Any] = {}
"""Compiled functions by what they depend on, so that a call with arrays like earlier ones costs little more than a launch."""
_MOST_PLANS = 4096


def _run(kind: str, x: Any, weight: Any, bias: Any, eps: float, out: Any) -> Any:
    if out is None:
        out = arrays.empty(x, tuple(x.shape), None)
    key = (kind, target_name(), sanitizing.kinds(), *(arrays.signature(t) for t in (x, out, weight, bias)))
    compiled = _plans.get(key)
    if compiled is None:
        _check(kind, x, weight, bias, out)
        if 0 in x.shape:
            return out
        if _matrix(x) is None:
            return _run(kind, arrays.contiguous(x), weight, bias, eps, out)
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        compiled = _plans[key] = _compile(kind, _matrix(x), weight, bias, _matrix(out))
    vectors = [v for v in (weight, bias) if v is not None]
    compiled(_matrix(x), _matrix(out), *vectors, eps, arrays.stream_of(x))
    return out


def _check(kind: str, x: Any, weight: Any, bias: Any, out: Any) -> None:
    arrays.require(x.ndim >= 1 and x.shape[-1] > 0, f"{kind} of an array of shape {tuple(x.shape)}")
    arrays.require(tuple(out.shape) == tuple(x.shape), f"{kind} of shape {tuple(x.shape)} into {tuple(out.shape)}")
    n = x.shape[-1]
    for name, vector in (("weight", weight), ("bias", bias)):
        arrays.require(
            vector is None or (tuple(vector.shape) == (n,) and arrays.strides(vector) == (1,)),
            f"{kind}: {name} has one element for each of the {n} columns, in a row",
        )
    arrays.require(
        _matrix(out) is not None or 0 in x.shape,
        f"{kind} into an array of strides {arrays.strides(out)}: rows are contiguous",
    )


def _compile(kind: str, x: Any, weight: Any, bias: Any, out: Any) -> Any:
    vectors = [v for v in (weight, bias) if v is not None]
    width = min(arrays.access_width(t, t.ndim - 1) for t in (x, out, *vectors))
    given, result = arrays.dynamic(x, 1, width), arrays.dynamic(out, 1, width)
    arrays.require(given.element_type in (Float16, BFloat16, Float32), f"{kind} of {given.element_type.__name__}")
    threads, each, whole = _shape_of(x.shape[-1], width)
    kernel = _kernel(kind, given.element_type, result.element_type, width, threads, each, whole)
    shown = [None if v is None else arrays.dynamic(v, 0, width) for v in (weight, bias)]
    return cute.compile(kernel, given, result, *shown, 0.0, 0)


def _matrix(x: Any) -> Any:
    """A view of an array as a matrix of its rows; None if there is none with contiguous rows."""
    if x.ndim != 2:
        x = x[None] if x.ndim == 1 else _flattened(x)
    return x if x is not None and arrays.strides(x)[1] == 1 else None


def _flattened(x: Any) -> Any:
    strides = arrays.strides(x)
    for outer, inner in zip(range(x.ndim - 2), range(1, x.ndim - 1), strict=True):
        if x.shape[outer] != 1 and strides[outer] != strides[inner] * x.shape[inner]:
            return None
    return x.reshape(-1, x.shape[-1])


def softmax(x: Any, *, out: Any = None) -> Any:
    """exp(x) over its sum, along the last mode."""
    return _run("softmax", x, None, None, 0.0, out)


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, out: Any = None) -> Any:
    """x over the root of the mean of its squares plus `eps`, along the last mode, times a weight for each column."""
    return _run("rms_norm", x, weight, None, eps, out)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, out: Any = None) -> Any:
    """x less its mean over the root of its variance plus `eps`, along the last mode, times a weight, plus a bias."""
    return _run("layer_norm", x, weight, bias, eps, out)
