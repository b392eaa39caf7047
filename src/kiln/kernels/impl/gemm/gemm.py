"""`gemm`: matrix products of arrays as they lie, with what follows them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .... import Float32, NumericMeta, cute
from ...dispatch import arrays, devices, launches
from ...dispatch.recorder import kernel_function
from ...parts.element_functions import Functions, of_arrays, vectors_first
from .epilogue_fusion import EpilogueFusion, check_parameters
from .implementations import REGISTRY, GemmArguments
from .mixed_input import WEIGHT_TYPES, are_groups, is_packed
from .problem import SCALE_BLOCK, GemmProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    row_sum: str | Callable[[Any], Any] | None = None,
    precision: str = "ieee",
    config: Any = None,
) -> Any:
    """`epilogue(activation(alpha * (scale_a * a) @ (b * scale_b) + beta * c + bias), *extras)`, written to `out` or to a new array.

    `a` is (M, K) or (L, M, K), `b` is (K, N) or (L, K, N); one of them may lack L. One that is contiguous along
    neither of its last two modes is copied first. Elements: f16, bf16, f32, 8-bit floats, 8-bit integers. `c`, `bias` and `extras` are broadcast to the
    result: a bias of N is a row; with a beta of 0 `c` is not read. `activation` is "relu", "silu", "gelu" or a function of a
    value; `epilogue` a function of the value and of each of the `extras`, element by element: floats in f32, integers and truth
    values as they are. An epilogue that returns several values has as many results, a tuple of arrays then: `out` and `out_dtype` may be tuples.
    `row_sum` is "squares" or a function of the first of those values, in f32: its sums along rows are given besides, after the results, in f32:
    (M,) or (L, M); always in the same order. Sums are made in f32, of integers in i32; `out_dtype` is the framework's or Kiln's (default: the type
    of `a`; f32 for 8-bit floats, i32 for integers). `scale_a` is one factor, (1,), or one for each row, (M, 1); `scale_b` one, or one for each
    column, (N,). 8-bit floats may have factors of blocks instead, f32: (M, K / 128) for 128 elements of a row of `a` each, and
    (K / 128, N / 128) for 128 x 128 of `b`, rounded up. Where `a` is f16 or bf16, `b` may be 8-bit integers, or (K / 2, N) bytes with two integers of 4
    bits each, neighbours in K, the first in the low half; `scale_b` may then be (groups, N) for as many equal groups of K. `precision` is for f32: "ieee"
    multiplies it as it is, "tf32" rounds both factors to 10 bits of mantissa and uses the tensor cores; and for 8-bit floats: "fast" leaves
    sums to the tensor cores, which keep some 13 bits of them (those of blocks with factors are added in f32 even so). `config` is how
    it is cut, by default as is expected to take least time: a `Sm80GemmConfig`, or a config of another implementation.
    """
    arrays.require(
        isinstance(extras, (list, tuple)),
        f"gemm: extras is {type(extras).__module__}.{type(extras).__qualname__}, no list of arrays",
        hint="extras=[x]",
    )
    scales = (scale_a, scale_b)
    asked = Asked(
        a, b, out, out_dtype, alpha, beta, scales, c, bias, activation, epilogue, tuple(extras), precision, row_sum
    )  # fmt: skip
    if not asked.check():
        return asked.results()

    def run(branching: Sequence[Any]) -> None:
        problem, given = asked.canonical(branching)
        REGISTRY.run(problem, devices.current(), given, config)

    vectors_first(run)
    return asked.results()


@dataclasses.dataclass
class Asked:
    """What `gemm` is asked for, in the arrays of the caller."""

    a: Any
    b: Any
    out: Any
    out_dtype: Any
    alpha: float
    beta: float
    scales: tuple[Any, Any]
    c: Any
    bias: Any
    activation: Any
    epilogue: Any
    extras: tuple[Any, ...]
    precision: str
    row_sum: Any = None
    outs: list[Any] = dataclasses.field(default_factory=list)
    """The results, and where each is computed that does not lie as it must."""
    computed: list[Any] = dataclasses.field(default_factory=list)
    summed: Any = None

    def results(self) -> Any:
        """What the caller gets."""
        for x, made in zip(self.outs, self.computed, strict=True):
            if made is not x:
                arrays.assign(x, made)
        found = [*self.outs, *([] if self.summed is None else [self.summed])]
        return found[0] if len(found) == 1 else tuple(found)

    @functools.cached_property
    def shape(self) -> tuple[int, int, int]:
        """The batches, rows and columns of the result."""
        a, b = self.a, self.b
        arrays.require(
            a.ndim in (2, 3) and b.ndim in (2, 3),
            f"gemm of arrays of {a.ndim} and {b.ndim} modes: 2 or 3",
            hint="(M, K) and (K, N), or (L, M, K) and (L, K, N): reshape several modes of batches to one",
        )
        counts = [x.shape[0] if x.ndim == 3 else 1 for x in (a, b)]
        batches = counts[1] if counts[0] == 1 else counts[0]
        arrays.require(
            all(count in (1, batches) for count in counts)
            and a.shape[-1] == b.shape[-2] * (2 if is_packed(a, b) else 1),
            f"gemm of shapes {tuple(a.shape)} and {tuple(b.shape)}",
            hint="(L, M, K) and (L, K, N)",
        )
        return batches, a.shape[-2], b.shape[-1]

    def check(self) -> bool:
        """Refuse what does not go together, and make `out` if there is none; whether there is anything to compute."""
        others = (("c", self.c), ("bias", self.bias), *(("extras", x) for x in self.extras))
        scales = tuple(zip(("scale_a", "scale_b"), self.scales, strict=True))
        for name, x in (("a", self.a), ("b", self.b), *scales, *others):
            if x is not None:
                arrays.require_usable(x, f"gemm: {name}")
        check_parameters("activation", self.activation, 0)
        check_parameters("epilogue", self.epilogue, len(self.extras))
        check_parameters("function of row_sum", self.row_sum, 0)
        shape = self.shape
        flat = shape[1:] if self.a.ndim == self.b.ndim == 2 else shape
        given, types = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (self.out, self.out_dtype))
        count = max(len(given), len(types))
        if count == 1 and self.epilogue is not None:
            count = values_of(self.epilogue, [arrays.element_type(x) for x in self.extras])
        for name, found in (("out", given), ("out_dtype", types)):
            found += [None] * (count - 1) if len(found) == 1 and found[0] is None else []
            arrays.require(len(found) == count, f"gemm: {len(found)} of {name} for {count} results")
        for x, kind in zip(given, types, strict=True):
            if x is not None:
                arrays.require_usable(x, "gemm: out", written=True)
            self.outs.append(arrays.empty(self.a, flat, out_type(self.a, kind)) if x is None else x)
        self.out = self.outs[0]
        for x in self.outs:
            arrays.require(
                tuple(x.shape) == (shape[1:] if x.ndim == 2 and shape[0] == 1 else shape),
                f"gemm of shape {flat} into an array of {tuple(x.shape)}",
            )
        if self.row_sum is not None:
            self.summed = arrays.empty(self.a, flat[:-1], arrays.dtype_named(self.a, "float32"))
        self.computed = self.outs
        if 0 in shape:
            if self.summed is not None and 0 not in tuple(self.summed.shape):
                arrays.fill(self.summed, 0)
            return False
        for name, x in (("a", self.a), ("b", self.b)):
            arrays.require(
                all(arrays.address(x) != arrays.address(out) for out in self.outs),
                f"gemm: out begins where {name} does, which is read after parts of the result are written",
                hint="another array; c may be out",
            )
        if self.a.shape[-1] == 0:  # the sums are those of one product of zeros
            if are_blocks(self.scales, shape[1], shape[2], 0):  # factors of no blocks
                self.scales, scales = (None, None), ()
            self.a, self.b = _zeros(self.a, -1), _zeros(self.b, -2)
        arrays.require(
            self.c is not None or self.beta in (0.0, 1.0),
            f"gemm with beta {float(self.beta)} and no c",
            hint="c=, which may be out",
        )
        arrays.require(
            self.epilogue is not None or not self.extras,
            f"gemm with {len(self.extras)} extras and no epilogue",
            hint="epilogue=lambda value, x: ..., extras=[x]",
        )
        scales = () if self.in_blocks else scales[:1] if self.in_groups else scales
        for name, x in (*scales, *others):
            if x is not None:
                check_broadcast(name, tuple(x.shape), shape)
        if self.beta == 0.0:  # whatever is in it, infinities too
            self.c = None
        return True

    def canonical(self, branching: Sequence[Any]) -> tuple[GemmProblem, GemmArguments]:
        """The problem and its arrays: three modes, rows of the result contiguous."""
        in_rows = len(self.outs) > 1 or self.summed is not None or self.weights or self.in_blocks
        if in_rows:  # of each
            self.computed = [
                x if arrays.layout_of(x).strides[-1] == 1 else arrays.empty(x, tuple(x.shape), None) for x in self.outs
            ]
        a, b, out, *more = (x if x.ndim == 3 else arrays.with_batch(x) for x in (self.a, self.b, *self.computed))
        a, b = (arrays.broadcast_to(readable(x), (self.shape[0], *x.shape[1:])) for x in (a, b))
        groups = factors_of_blocks(self.scales[1], self.shape[0], "groups") if self.in_groups else None
        scales = () if self.in_blocks else self.scales[:1] if self.in_groups else self.scales
        factors = [x for x in scales if x is not None]
        blocks = [factors_of_blocks(x, self.shape[0]) for x in self.scales] if self.in_blocks else []
        added = [x for x in (self.c, self.bias) if x is not None]
        others = [arrays.broadcast_to(x, self.shape) for x in (*factors, *added, *self.extras)]
        if (
            not in_rows and arrays.layout_of(out).leading((1, 2)) == 1
        ):  # columns are contiguous: the transpose is computed
            a, b, out = (arrays.transposed(x) for x in (b, a, out))
            others = [arrays.transposed(x) for x in others]
        integers = arrays.element_type(a).is_integer
        follows = bool(others) or any(x is not None for x in (self.activation, self.epilogue, self.row_sum))
        follow = EpilogueFusion.of(
            self.c is not None, self.bias is not None, self.activation, self.epilogue,
            not integers or self.alpha != 1.0 or follows, branching, len(factors), len(self.outs), self.row_sum,
        )  # fmt: skip
        laid = arrays.layout_of
        problem = GemmProblem(
            laid(a), laid(b), laid(out), tuple(map(laid, others)), follow, self.precision, tuple(map(laid, blocks)), tuple(map(laid, more)),
            is_packed(self.a, self.b), None if groups is None else laid(groups),
        )  # fmt: skip
        return problem, GemmArguments(
            a, b, out, others, self.alpha, self.beta, blocks, extra_outs=more, group_scales=groups, row_sum=self.summed
        )

    @functools.cached_property
    def weights(self) -> bool:
        """Whether b has integers where a has floats."""
        return arrays.element_type(self.b) in WEIGHT_TYPES and arrays.element_type(self.a).is_float

    @functools.cached_property
    def in_groups(self) -> bool:
        """Whether groups of K of weights have factors."""
        return self.weights and are_groups(self.scales[1], self.a.shape[-1], self.shape[2])

    @functools.cached_property
    def in_blocks(self) -> bool:
        """Whether blocks have factors. Of one block alone they are those of rows, and one for b, of elements of all types."""
        n, k = self.shape[2], self.a.shape[-1]
        return max(n, k) > SCALE_BLOCK and are_blocks(self.scales, self.shape[1], n, k)


def values_of(epilogue: Callable[..., Any], types: list[Any]) -> int:
    """How many values an epilogue returns for a value and others of some types; found out once for equal functions."""

    def tried(branching: Sequence[Any]) -> int:
        function = Functions(epilogue, branching=branching).callables()[0]
        found: list[int] = []

        @cute.jit
        def probe():
            given = [Float32 if kind.is_float else kind for kind in (Float32, *types)]
            made = of_arrays(function, *[cute.full((1,), 0, kind) for kind in given])
            found.append(len(made) if isinstance(made, tuple) else 1)

        cute.compile(probe)
        return found[0]

    return launches.cached_kernel_of(Functions(epilogue), lambda: vectors_first(tried), values_of, *types)


def are_blocks(scales: tuple[Any, Any], rows: int, n: int, k: int) -> bool:
    """Whether factors are those of blocks: of 128 elements of each row, and of 128 x 128."""
    if any(x is None for x in scales):
        return False
    depth, across = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    return [tuple(x.shape[-2:]) for x in scales] == [(rows, depth), (depth, across)]


def factors_of_blocks(x: Any, batches: int, what: str = "blocks") -> Any:
    """Factors of blocks, or of groups, with three modes."""
    arrays.require(what == "groups" or str(x.dtype).endswith("float32"), f"factors of {what} are {x.dtype}, not f32")
    found = readable(x if x.ndim == 3 else arrays.with_batch(x))
    return arrays.broadcast_to(found, (batches, *found.shape[1:]))


def out_type(a: Any, given: Any) -> Any:
    """The type of a result in the framework, of which one may be given; None: that of `a`."""
    if given is not None:
        return arrays.framework_dtype(given, a) if isinstance(given, NumericMeta) else given
    name = str(a.dtype).rpartition(".")[2]
    wanted = "float32" if name.startswith("float8") else "int32" if name in ("int8", "uint8") else None
    return None if wanted is None else arrays.dtype_named(a, wanted)


def readable(x: Any) -> Any:
    """An operand of which one of the last two modes is contiguous: itself or a copy."""
    there = arrays.layout_of(x).leading((1, 2)) is not None and min(arrays.strides(x)) >= 0
    return x if there else arrays.contiguous(x)


def _zeros(x: Any, k_mode: int) -> Any:
    """An array like `x`, which has no elements because K is 0, with K of 1."""
    shape = list(x.shape)
    shape[k_mode] = 1
    made = arrays.empty(x, tuple(shape), None)
    arrays.fill(made, 0)
    return made


def check_broadcast(name: str, given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Refuse an array that is not broadcast to a result."""
    fits = len(given) <= 3 and all(x in (1, s) for x, s in zip(reversed(given), reversed(shape), strict=False))
    arrays.require(
        fits,
        f"gemm: {name} of shape {given} is not broadcast to a result of {shape}",
        hint="a row is (N,), a column (M, 1)",
    )
