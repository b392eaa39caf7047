"""`gemm`: the GEMM of arrays as they lie, with a fused epilogue."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .... import Float32, NumericMeta, cute
from ...dispatch import arrays, devices, launches
from ...dispatch.recorder import kernel_function
from ...parts.element_functions import Functions, of_arrays, vectors_first
from .arguments import GemmArguments
from .epilogue_fusion import EpilogueFusion, check_parameters
from .implementations import REGISTRY
from .problem import FLOATS, INTEGERS, SCALE_BLOCK, GemmProblem, block_scale_shapes
from .vector_scales import packed_bytes, scale_atoms, scale_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...dispatch.registry import Registry

__all__ = ["gemm"]


@kernel_function("a", "b", "out", "scale_a", "scale_b", "c", "bias", "extras", numbers=("alpha", "beta"))
def gemm(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale_a: Any = None,
    scale_b: Any = None,
    c: Any = None,
    bias: Any = None,
    activation: str | Callable[[Any], Any] | None = None,
    epilogue: Callable[..., Any] | None = None,
    extras: Sequence[Any] = (),
    row_reduction: str | Callable[[Any], Any] | None = None,
    precision: str = "ieee",
    config: Any = None,
) -> Any:
    """Return `epilogue(activation(alpha * (scale_a * a) @ (b * scale_b) + beta * c + bias), *extras)`.

    Accumulators are f32, of integers i32. An operand that is contiguous along neither of its last two modes is copied
    first.

    Args:
        a: (M, K) or (L, M, K): f16, bf16, f32, 8-bit floats or 8-bit integers.
        b: (K, N) or (L, K, N); one of the two may lack L. Where `a` is f16 or bf16, `b` may be 8-bit integers, or (K /
            2, N) bytes with two 4-bit integers each, neighbours in K, the first in the low half.
        out: an array for the result; a tuple of them for an epilogue with several results.
        out_dtype: the element type of a new result, the framework's or Kiln's; by default the type of `a`, f32 for
            8-bit floats, i32 for integers.
        alpha: a factor of `a @ b`.
        beta: a factor of `c`, which is not read if this is 0.
        scale_a: one scale, (1,), or one for each row, (M, 1). 8-bit floats may have block scales (M, K / 128), f32 or
            powers of two (e8m0). They may have e8m0 scales for vectors of 32 elements (mxfp8), (M, K / 32) or in atoms of
            512 bytes. Bytes (M, K / 2) with two 4-bit floats each, the first in the low half, have such scales (mxfp4),
            or e4m3 scales for vectors of 16 elements (nvfp4).
        scale_b: one scale, or one for each column, (N,). 8-bit floats may have block scales (K / 128, N / 128), rounded
            up, of the type of those of `a`. If `a` has scales for vectors, so has `b`: (K / 32, N), with nvfp4
            (K / 16, N), or atoms. Narrow integers may have (groups, N) for equal groups of K.
        c: an array that is added, broadcast to the result.
        bias: a row (N,) that is added, or what broadcasts to the result.
        activation: "relu", "silu", "gelu", or a function of a value.
        epilogue: a function of the value and of each of the `extras`, element by element: floats in f32, integers and
            truth values as they are. If it returns several values, so does `gemm`.
        extras: arrays for the epilogue, broadcast to the result.
        row_reduction: "squares", or a function of the epilogue's first value, in f32. Its values are added along rows,
            always in the same order, and returned last, f32, (M,) or (L, M).
        precision: "ieee"; for f32 also "tf32", which rounds operands to 10 bits of mantissa and uses the tensor cores;
            for 8-bit floats also "fast", which leaves accumulation to the tensor cores, with some 13 bits (scaled
            blocks are added in f32 even so).
        config: a config of an implementation, such as `Sm80GemmConfig`; by default the one that is expected to take
            least time.
    """
    scales = scale_a, scale_b
    call = GemmCall(
        packed_bytes(a),
        packed_bytes(b),
        out,
        out_dtype,
        alpha,
        beta,
        scales,
        c,
        bias,
        activation,
        epilogue,
        extras,
        precision,
        row_reduction,
    )
    return call.run(REGISTRY, config)


@dataclasses.dataclass
class GemmCall:
    """The arguments of a call of `gemm`, in the caller's arrays; `grouped_gemm` derives its own."""

    a: Any
    b: Any
    out: Any
    out_dtype: Any
    alpha: float = 1.0
    beta: float = 1.0
    scales: tuple[Any, Any] = (None, None)
    c: Any = None
    bias: Any = None
    activation: Any = None
    epilogue: Any = None
    extras: Sequence[Any] = ()
    precision: str = "ieee"
    row_reduction: Any = None

    function = "gemm"
    outs: list[Any] = dataclasses.field(default_factory=list, init=False)
    """The results."""
    computed: list[Any] = dataclasses.field(default_factory=list, init=False)
    """Where each result is computed: itself, or an array with contiguous rows."""
    row_sum_out: Any = dataclasses.field(default=None, init=False)

    def run(self, registry: Registry, config: Any) -> Any:
        """Check the arguments, compute, and return what the caller gets."""
        if self.validate():
            vectors_first(lambda branching: registry.run(*self.canonical(branching), config))
        for x, y in zip(self.outs, self.computed, strict=True):
            if y is not x:
                arrays.assign(x, y)
        results = [*self.outs, *([] if self.row_sum_out is None else [self.row_sum_out])]
        return results[0] if len(results) == 1 else tuple(results)

    @functools.cached_property
    def shape(self) -> tuple[int, int, int]:
        """The shape (L, M, N) of the result."""
        a = self.a
        b = self.b
        arrays.require(
            a.ndim in (2, 3) and b.ndim in (2, 3),
            f"gemm: a has {a.ndim} modes and b has {b.ndim}; they must have 2 or 3",
            hint="(M, K) and (K, N), or (L, M, K) and (L, K, N): reshape several batch modes to one",
        )
        counts = [x.shape[0] if x.ndim == 3 else 1 for x in (a, b)]
        batches = counts[1] if counts[0] == 1 else counts[0]
        arrays.require(
            all(count in (1, batches) for count in counts) and a.shape[-1] == b.shape[-2] * (2 if self.int4 else 1),
            f"gemm: shapes {tuple(a.shape)} of a and {tuple(b.shape)} of b do not go together",
            hint="(L, M, K) and (L, K, N)",
        )
        return batches, a.shape[-2], b.shape[-1]

    def validate(self) -> bool:
        """Refuse arguments that do not fit, allocate results, and return whether there is anything to compute."""
        name = self.function
        arrays.require(
            isinstance(self.extras, (list, tuple)),
            f"{name}: extras is {type(self.extras).__module__}.{type(self.extras).__qualname__}, no list of arrays",
            hint="extras=[x]",
        )
        inputs = (("c", self.c), ("bias", self.bias), *(("extras", x) for x in self.extras))
        scales = tuple(zip(("scale_a", "scale_b"), self.scales, strict=True))
        for what, x in (("a", self.a), ("b", self.b), *scales, *inputs):
            if x is not None:
                arrays.require_usable(x, f"{name}: {what}")
        for what, function, extras in (
            ("activation", self.activation, 0),
            ("epilogue", self.epilogue, len(self.extras)),
            ("function of row_reduction", self.row_reduction, 0),
        ):
            check_parameters(what, function, extras)
        shape = self.shape
        self.allocate(shape)
        if 0 in shape or (self.b.ndim == 3 and self.b.shape[0] == 0):
            if self.row_sum_out is not None and 0 not in tuple(self.row_sum_out.shape):
                arrays.fill(self.row_sum_out, 0)
            return False
        for what, x in (("a", self.a), ("b", self.b)):
            arrays.require(
                all(arrays.address(x) != arrays.address(out) for out in self.outs),
                f"{name}: out begins where {what} does, which is read after parts of the result are written",
                hint="another array; c may be out",
            )
        self.check_scales()
        arrays.require(
            self.c is not None or self.beta in (0.0, 1.0),
            f"{name}: beta is {float(self.beta)}, and there is no c",
            hint="c=, which may be out",
        )
        arrays.require(
            self.epilogue is not None or not self.extras,
            f"{name}: there are {len(self.extras)} extras and no epilogue",
            hint="epilogue=lambda value, x: ..., extras=[x]",
        )
        for what, x in (*zip(("scale_a", "scale_b"), self.row_scales), *inputs):
            if x is not None:
                check_broadcast(f"{name}: {what}", tuple(x.shape), shape)
        if self.beta == 0.0:  # c may hold infinities
            self.c = None
        return True

    def check_scales(self) -> None:
        """Take care of a K of 0: D is then the epilogue of zeros."""
        if self.a.shape[-1] == 0:
            if are_block_scales(self.scales, *self.shape[1:], 0):
                self.scales = None, None
            self.a = _zeros(self.a, -1)
            self.b = _zeros(self.b, -2)

    def allocate(self, shape: tuple[int, ...]) -> None:
        """Set the results, and allocate those that are missing."""
        flat = shape[1:] if self.a.ndim == self.b.ndim == 2 else shape
        outs, types = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (self.out, self.out_dtype))
        count = max(len(outs), len(types))
        if count == 1 and self.epilogue is not None:
            count = num_values(self.epilogue, [arrays.element_type(x) for x in self.extras])
        for name, values in (("out", outs), ("out_dtype", types)):
            values += [None] * (count - 1) if len(values) == 1 and values[0] is None else []
            arrays.require(len(values) == count, f"gemm: {name} has {len(values)} entries for {count} results")
        for x, dtype in zip(outs, types, strict=True):
            self.add_out(x, dtype, flat, (flat, shape[1:] if shape[0] == 1 else shape, shape))
        if self.row_reduction is not None:
            self.row_sum_out = arrays.empty(self.a, flat[:-1], arrays.dtype_named(self.a, "float32"))
        self.computed = self.outs

    def add_out(self, x: Any, dtype: Any, shape: tuple[int, ...], allowed: Sequence[tuple[int, ...]]) -> None:
        """Add a result: an array of one of the allowed shapes, or a new one."""
        if x is None:
            x = arrays.empty(self.a, shape, out_type(self.a, dtype, self.fp4))
        else:
            arrays.require_usable(x, f"{self.function}: out", written=True)
        arrays.require(
            tuple(x.shape) in allowed, f"{self.function}: out has the shape {tuple(x.shape)}; it must have {shape}"
        )
        self.outs.append(x)

    def canonical(self, branching: Sequence[Any]) -> tuple[GemmProblem, Any, GemmArguments]:
        """Return the problem, the device and the arrays: with three modes, and contiguous rows of the result."""
        own_scales = self.block_scaled or self.vector_scaled
        in_rows = len(self.outs) > 1 or self.row_sum_out is not None or self.mixed_input or own_scales
        if in_rows:
            self.computed = [
                x if arrays.layout_of(x).strides[-1] == 1 else arrays.empty(x, tuple(x.shape), None) for x in self.outs
            ]
        a, b, out, *extra_outs = (x if x.ndim == 3 else arrays.with_batch(x) for x in (self.a, self.b, *self.computed))
        a, b = (arrays.broadcast_to(readable(x), (self.shape[0], *x.shape[1:])) for x in (a, b))
        group_scales = scale_tensor(self.scales[1], self.shape[0]) if self.group_scaled else None
        block_scales = [scale_tensor(x, self.shape[0], Float32) for x in self.scales] if self.block_scaled else []
        vector_scales = []
        if self.vector_scaled:
            k = a.shape[2] * (2 if self.fp4 else 1)
            vector_scales = scale_atoms(self.scales, (a, b), k, self.scale_vector)
        scales = [x for x in self.row_scales if x is not None]
        added = [x for x in (self.c, self.bias) if x is not None]
        inputs = [arrays.broadcast_to(x, self.shape) for x in (*scales, *added, *self.extras)]
        if not in_rows and arrays.layout_of(out).leading((1, 2)) == 1:  # columns are contiguous: compute the transpose
            a, b, out = (arrays.transposed(x) for x in (b, a, out))
            inputs = [arrays.transposed(x) for x in inputs]
        fusion = self.fusion(Float32 if self.fp4 else arrays.element_type(a), inputs, branching, len(scales))
        layout = arrays.layout_of
        problem = GemmProblem(
            layout(a),
            layout(b),
            layout(out),
            tuple(map(layout, inputs)),
            fusion,
            self.precision,
            tuple(map(layout, block_scales)),
            tuple(map(layout, extra_outs)),
            self.int4,
            None if group_scales is None else layout(group_scales),
            tuple(map(layout, vector_scales)),
            self.scale_vector,
            self.fp4,
        )
        arguments = GemmArguments(
            a,
            b,
            out,
            inputs,
            self.alpha,
            self.beta,
            block_scales,
            None,
            extra_outs,
            group_scales,
            vector_scales,
            self.row_sum_out,
        )
        return problem, devices.current(), arguments

    def fusion(
        self, dtype: type[cute.Numeric], inputs: Sequence[Any], branching: Sequence[Any], scales: int = 0
    ) -> EpilogueFusion:
        """Return the epilogue. Integers of which nothing is computed stay integers."""
        fused = bool(inputs) or any(x is not None for x in (self.activation, self.epilogue, self.row_reduction))
        return EpilogueFusion.of(
            self.c is not None,
            self.bias is not None,
            self.activation,
            self.epilogue,
            not dtype.is_integer or self.alpha != 1.0 or fused,
            branching,
            scales,
            len(self.outs),
            self.row_reduction,
        )

    @functools.cached_property
    def mixed_input(self) -> bool:
        """Whether b has integers where a has floats."""
        return arrays.element_type(self.b) in INTEGERS and arrays.element_type(self.a).is_float

    @functools.cached_property
    def int4(self) -> bool:
        """Whether b has two elements of 4 bits in a byte: half as many rows as a has columns."""
        return self.mixed_input and 2 * self.b.shape[-2] == self.a.shape[-1]

    @functools.cached_property
    def group_scaled(self) -> bool:
        """Whether scale_b has scales (groups, N) of groups of K."""
        scale = self.scales[1]
        k = self.a.shape[-1]
        if not self.mixed_input or scale is None or scale.ndim < 2:
            return False
        return scale.shape[-2] > 1 and scale.shape[-1] == self.shape[2] and k % scale.shape[-2] == 0

    @functools.cached_property
    def block_scaled(self) -> bool:
        """Whether operands have block scales. Those of a single block are scales of rows and of b, for all types."""
        _, m, n = self.shape
        large = max(n, self.a.shape[-1]) > SCALE_BLOCK and not self.vector_scaled
        return large and are_block_scales(self.scales, m, n, self.a.shape[-1])

    @functools.cached_property
    def scale_vector(self) -> int:
        """Elements along K that share a scale factor; 0 without such."""
        return scale_vector(self.function, (self.a, self.b), self.scales)

    @property
    def vector_scaled(self) -> bool:
        """Whether operands have scales of vectors along K."""
        return self.scale_vector > 0

    @property
    def fp4(self) -> bool:
        """Whether operands are bytes with two 4-bit floats each."""
        return self.vector_scaled and arrays.element_type(self.a) in INTEGERS

    @property
    def row_scales(self) -> tuple[Any, ...]:
        """Scales of rows or columns, by which the epilogue multiplies."""
        return () if self.block_scaled or self.vector_scaled else self.scales[:1] if self.group_scaled else self.scales


def num_values(epilogue: Callable[..., Any], types: list[type[cute.Numeric]]) -> int:
    """Return how many values an epilogue returns for a value and extras of some types, found by tracing it once."""

    def trace(branching: Sequence[Any]) -> int:
        function = Functions(epilogue, branching=branching).callables()[0]
        counts: list[int] = []

        @cute.jit
        def probe():
            kinds = [Float32 if kind.is_float else kind for kind in (Float32, *types)]
            returned = of_arrays(function, *[cute.full((1,), 0, kind) for kind in kinds])
            counts.append(len(returned) if isinstance(returned, tuple) else 1)

        cute.compile(probe)
        return counts[0]

    return launches.cached_kernel_of(Functions(epilogue), lambda: vectors_first(trace), num_values, *types)


def are_block_scales(scales: tuple[Any, Any], m: int, n: int, k: int) -> bool:
    """Return whether scales are those of blocks: of 128 elements of each row, and of 128 x 128."""
    if any(x is None for x in scales):
        return False
    return tuple(tuple(x.shape[-2:]) for x in scales) == block_scale_shapes(k, n, m)


def scale_tensor(x: Any, batches: int, dtype: type[cute.Numeric] | None = None) -> Any:
    """Return scales of blocks or groups with three modes; those of blocks must have a type."""
    arrays.require(dtype is None or arrays.element_type(x) is dtype, f"gemm: block scales are {x.dtype}, not f32")
    batched = readable(x if x.ndim == 3 else arrays.with_batch(x))
    return arrays.broadcast_to(batched, (batches, *batched.shape[1:]))


def out_type(a: Any, dtype: Any, fp4: bool = False) -> Any:
    """Return the type of a result in the framework of `a`; None: that of `a`."""
    if dtype is not None:
        return arrays.framework_dtype(dtype, a) if isinstance(dtype, NumericMeta) else dtype
    kind = arrays.element_type(a)
    wide = (
        "float32"
        if fp4
        else None
        if kind in FLOATS
        else "int32"
        if kind in INTEGERS
        else "float32"
        if kind.width == 8
        else None
    )
    return None if wide is None else arrays.dtype_named(a, wide)


def readable(x: Any) -> Any:
    """Return an operand of which one of the last two modes is contiguous: itself or a copy."""
    there = arrays.layout_of(x).leading((1, 2)) is not None and min(arrays.strides(x)) >= 0
    return x if there else arrays.contiguous(x)


def _zeros(x: Any, k_mode: int) -> Any:
    """Return zeros with a K of 1 for an operand with a K of 0."""
    shape = list(x.shape)
    shape[k_mode] = 1
    zeros = arrays.empty(x, tuple(shape), None)
    arrays.fill(zeros, 0)
    return zeros


def check_broadcast(what: str, extents: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse an array that is not broadcast to a result."""
    fits = len(extents) <= 3 and all(x in (1, s) for x, s in zip(reversed(extents), reversed(shape), strict=False))
    arrays.require(
        fits,
        f"{what} of shape {extents} is not broadcast to a result of {shape}",
        hint="a row is (N,), a column (M, 1)",
    )
