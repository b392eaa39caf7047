"""`gemm`: matrix products of arrays as they lie, with what follows them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl.dependencies import Dependencies
from ...base_dsl.static_key import static_key
from ...base_dsl.typing import BFloat16, Float16, Float32, Int8, NumericMeta, Uint8
from ...cute.tensor.tensor_ssa import VectorTruthError
from .. import devices
from ..common import arrays, launches
from ..common.calls import kernel_function, mode
from ..common.element_functions import of_arrays, one_by_one
from . import cost, plan
from .feed import Operand
from .plan import Tiling
from .simt import SimtGemm
from .split_sum import SplitSum
from .tensor_core import FLOAT8, TensorCoreGemm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Tiling", "gemm"]

PRECISIONS = ("ieee", "tf32")


# --- what follows the sums -------------------------------------------------------------------------------------------


def _identity(x: Any) -> Any:
    return x


def _relu(x: Any) -> Any:
    return cute.where(x > 0.0, x, cute.full_like(x, 0.0))


def _silu(x: Any) -> Any:
    return x / (cute.math.exp(-x) + 1.0)


def _gelu(x: Any) -> Any:
    return x * 0.5 * (cute.math.erf(x * 0.7071067811865476) + 1.0)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": _relu, "silu": _silu, "gelu": _gelu}


def _combiner(
    has_c: bool, has_bias: bool, activation: Callable[[Any], Any], epilogue: Callable[..., Any] | None, scaled: bool
) -> Callable[..., Any]:
    """The function of a thread's sums and its parts of the other tensors."""

    def combine(acc: Any, alpha: Any, beta: Any, *others: Any) -> Any:
        added = has_c + has_bias  # integers and truth values among the extras stay what they are
        rest = [
            x.to(Float32) if x.dtype is not Float32 and (n < added or x.dtype.is_float) else x
            for n, x in enumerate(others)
        ]
        value = acc.to(Float32) if scaled and acc.dtype is not Float32 else acc
        if scaled:
            value = value * alpha
        if has_c:
            value = value + rest.pop(0) * beta
        if has_bias:
            value = value + rest.pop(0)
        value = _returned("activation", of_arrays(activation, value), value)
        return value if epilogue is None else _returned("epilogue", of_arrays(epilogue, value, *rest), value)

    return combine


def _returned(what: str, made: Any, value: Any) -> Any:
    """What a user's function made of a value: another one, or a number for all of them."""
    if isinstance(made, (bool, int, float)):
        return cute.full_like(value, float(made))
    arrays.require(
        isinstance(made, type(value)) and made.shape == value.shape,
        f"gemm: the {what} returned {'None' if made is None else type(made).__name__}",
        hint="it returns the value for each element it is given, and may change its type",
    )
    return made


# --- the function ----------------------------------------------------------------------------------------------------


@kernel_function("a", "b", "out", "c", "bias", "extras", numbers=("alpha", "beta"))
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
    precision: str = "ieee",
    plan: Tiling | None = None,
) -> Any:
    """`epilogue(activation(alpha * a @ b + beta * c + bias), *extras)`, written to `out` or to a new array.

    `a` is (M, K) or (L, M, K), `b` is (K, N) or (L, K, N); one of them may lack L. One that is contiguous along
    neither of its last two modes is copied first. Elements: f16, bf16, f32, 8-bit floats, 8-bit integers. `c`, `bias` and `extras` are broadcast to the
    result: a bias of N is a row; with a beta of 0 `c` is not read. `activation` is "relu", "silu", "gelu" or a function of a
    value; `epilogue` a function of the value and of each of the `extras`, element by element: floats in f32, integers and truth
    values as they are. Sums are made in f32, of integers in i32; `out_dtype` is the framework's or Kiln's (default: the type
    of `a`; f32 for 8-bit floats, i32 for integers). `precision` is for f32: "ieee"
    multiplies it as it is, "tf32" rounds both factors to 10 bits of mantissa and uses the tensor cores.
    """
    arrays.require(
        isinstance(extras, (list, tuple)),
        f"gemm: extras is {type(extras).__module__}.{type(extras).__qualname__}, no list of arrays",
        hint="extras=[x]",
    )
    request = Request(a, b, out, out_dtype, alpha, beta, c, bias, activation, epilogue, tuple(extras), precision, plan)
    return request.run()


@dataclasses.dataclass
class Request:
    """What `gemm` is asked for."""

    a: Any
    b: Any
    out: Any
    out_dtype: Any
    alpha: float
    beta: float
    c: Any
    bias: Any
    activation: Any
    epilogue: Any
    extras: tuple[Any, ...]
    precision: str
    tiling: Tiling | None
    branching: bool = False
    """Whether the user's functions are given one element at a time."""

    @property
    def flat(self) -> bool:
        """Whether there are no batches."""
        return self.a.ndim == self.b.ndim == 2

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
            all(count in (1, batches) for count in counts) and a.shape[-1] == b.shape[-2],
            f"gemm of shapes {tuple(a.shape)} and {tuple(b.shape)}",
            hint="(L, M, K) and (L, K, N)",
        )
        return batches, a.shape[-2], b.shape[-1]

    def out_type(self) -> Any:
        """The type of the result in the framework; None: that of `a`."""
        if self.out_dtype is not None:
            given = self.out_dtype
            return arrays.framework_dtype(given, self.a) if isinstance(given, NumericMeta) else given
        name = str(self.a.dtype).rpartition(".")[2]
        wanted = "float32" if name.startswith("float8") else "int32" if name in ("int8", "uint8") else None
        return None if wanted is None else arrays.named_type(self.a, wanted)

    def run(self) -> Any:
        """Compute it; compiles the kernel unless there is one."""
        try:
            return self._run()
        except VectorTruthError:
            if self.branching:
                raise
            self.branching = True
            return self._run()

    def _run(self) -> Any:
        arrays.require(
            self.precision in PRECISIONS, f"gemm with precision {self.precision!r}: one of {', '.join(PRECISIONS)}"
        )
        for name, x in (
            ("a", self.a),
            ("b", self.b),
            ("c", self.c),
            ("bias", self.bias),
            *(("extras", x) for x in self.extras),
        ):
            if x is not None:
                arrays.require_usable(x, f"gemm: {name}")
        if self.out is not None:
            arrays.require_usable(self.out, "gemm: out", written=True)
        shape = self.shape
        out = self.out
        if out is None:
            out = self.out = arrays.empty(self.a, shape[1:] if self.flat else shape, self.out_type())
        arrays.require(
            tuple(out.shape) == (shape[1:] if out.ndim == 2 and shape[0] == 1 else shape),
            f"gemm of shape {shape[1:] if self.flat else shape} into an array of {tuple(out.shape)}",
        )
        if 0 in shape:
            return out
        for name, x in (("a", self.a), ("b", self.b)):
            arrays.require(
                arrays.address(x) != arrays.address(out),
                f"gemm: out begins where {name} does, which is read after parts of the result are written",
                hint="another array; c may be out",
            )
        if self.a.shape[-1] == 0:  # the sums are those of one product of zeros
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
        _check_parameters("activation", self.activation, 0)
        _check_parameters("epilogue", self.epilogue, len(self.extras))
        for name, x in (("c", self.c), ("bias", self.bias), *(("extras", x) for x in self.extras)):
            if x is not None:
                _check_broadcast(name, tuple(x.shape), shape)
        if self.beta == 0.0:  # whatever is in it, infinities too
            self.c = None
        others = [x for x in (self.c, self.bias) if x is not None] + list(self.extras)
        views = _Views(shape, self.a, self.b, out, others)
        tensors, result = views.tensors()
        dtypes = [t.element_type for t in tensors]
        _check_types(*dtypes)
        half = dtypes[0] in FLOAT8 and not devices.current().float8
        operands = [dataclasses.replace(o, dtype=t, half=half) for o, t in zip(views.operands, dtypes, strict=True)]
        tiling, simt = self._tiling(operands, result.element_type, views)
        rows = (views.a.shape[1], views.b.shape[2])
        operands = [
            dataclasses.replace(o, few=r < t) for o, r, t in zip(operands, rows, tiling.block_mnk[:2], strict=False)
        ]
        if tiling.splits > 1 and not _in_clusters(tiling):
            self._run_parts(tiling, views, result)
            return out
        kernel = self._kernel(operands, result.element_type, views, tiling, simt)
        _call(
            kernel,
            [views.a, views.b, views.out, *views.others],
            [*tensors, result, *views.shown()],
            3,
            self.alpha,
            self.beta,
        )
        return out

    def _tiling(self, operands: list[Operand], out_type: Any, views: _Views) -> tuple[Tiling, bool]:
        """How it is cut, and whether without tensor cores."""
        dtype = operands[0].dtype
        simt = plan.uses_simt(dtype, self.precision)
        device = devices.current()
        batches, m, n = self.shape
        k = self.a.shape[-1]
        tiling = self.tiling
        if tiling is None:
            cut = (batches, n, m) if views.swapped else (batches, m, n)
            # a second kernel adds parts in f32, along rows
            in_parts = not views.swapped and dtype not in (Int8, Uint8)
            aligned = all(
                s * arrays.itemsize(x) % 128 == 0 or s == 1 for x in (views.a, views.b) for s in arrays.strides(x)
            )
            problem = cost.Problem(dtype, simt, out_type.width, cut, k, aligned, in_parts)
            tiling = cost.chosen(problem, device)
        if not _in_clusters(tiling):
            tiling.check_splits(k, batches)
            arrays.require(
                tiling.splits == 1 or not (views.swapped or dtype in (Int8, Uint8)),
                f"{tiling}: K is cut into parts only for floats, into a result whose rows are contiguous",
            )
        if simt:
            tiling.check_simt(device.smem)
        else:
            tiling.check(dtype.width, plan.k_step(dtype), device.smem)
        return tiling, simt

    def _combine(self, key: Any, scaled: bool, make: Callable[[Any], Any]) -> Any:
        """The kernel `make(combine)`, the same for the same key and functions."""
        activation = self.activation
        chosen = (
            activation if callable(activation) else _identity if activation is None else ACTIVATIONS.get(activation)
        )
        arrays.require(
            chosen is not None, f"gemm with activation {activation!r}: one of {', '.join(ACTIVATIONS)}, or a function"
        )
        assert chosen is not None
        has = (self.c is not None, self.bias is not None)
        key = (*key, *has, static_key(chosen), static_key(self.epilogue), scaled, self.branching)
        found = _kernels.get(key)
        if found is None or not found[1].unchanged():
            reads = Dependencies(None, (chosen, self.epilogue))
            epilogue = self.epilogue
            if self.branching:
                chosen, epilogue = one_by_one(chosen), epilogue and one_by_one(epilogue)
            if len(_kernels) >= _MOST:
                _kernels.clear()
            found = _kernels[key] = (make(_combiner(*has, chosen, epilogue, scaled)), reads)
        return found[0]

    def _kernel(self, operands: list[Operand], out_type: Any, views: _Views, tiling: Tiling, simt: bool) -> Any:
        integers = operands[0].dtype in (Int8, Uint8)
        follows = bool(views.others) or self.activation is not None or self.epilogue is not None
        scaled = not integers or self.alpha != 1.0 or follows
        kind = SimtGemm if simt else TensorCoreGemm
        a, b = operands
        widths = views.other_widths if follows else None
        key = (kind, a, b, out_type, views.width, tiling, widths)
        return self._combine(key, scaled, lambda combine: kind(a, b, out_type, views.width, tiling, combine, widths))

    def _run_parts(self, tiling: Tiling, views: _Views, result: Any) -> None:
        """Two kernels: the parts of K as a batch, then their sum and what follows it."""
        _, m, n = self.shape
        splits, k = tiling.splits, self.a.shape[-1] // tiling.splits
        a, b = (x if x.ndim == 2 else arrays.reshaped(x, tuple(x.shape[1:])) for x in (self.a, self.b))
        a = arrays.permuted(arrays.reshaped(a, (m, splits, k)), [1, 0, 2])
        b = arrays.reshaped(b, (splits, k, n))
        sums = arrays.empty(self.a, (splits, m, n), arrays.named_type(self.a, "float32"))
        whole = dataclasses.replace(tiling, splits=1)
        Request(a, b, sums, None, 1.0, 1.0, None, None, None, None, (), self.precision, whole).run()
        width = min(views.width, arrays.access_width(sums, 2))
        out_type = result.element_type
        kernel = self._combine((SplitSum, out_type, width), True, lambda combine: SplitSum(out_type, width, combine))
        tensors = [arrays.dynamic(sums, 2, width), arrays.dynamic(views.out, 2, width), *views.shown()]
        _call(kernel, [sums, views.out, *views.others], tensors, 2, self.alpha, self.beta)


def _in_clusters(tiling: Tiling) -> bool:
    """Whether the blocks that share a tile add their sums themselves."""
    return 1 < tiling.splits <= min(plan.MOST_IN_CLUSTER, devices.current().cluster)


_MOST = 1024
_kernels: dict[Any, tuple[Any, Dependencies]] = {}
_functions: dict[Any, Any] = {}


def _call(kernel: Any, given: list[Any], tensors: list[Any], first: int, alpha: float, beta: float) -> None:
    """Run a kernel on arrays, which are these tensors, of which those after the first few are the others, and numbers."""
    key = (kernel, mode(), *(t.__kiln_argument__()[0] for t in tensors))
    compiled = _functions.get(key)
    if compiled is None:
        if len(_functions) >= _MOST:
            _functions.clear()
        compiled = _functions[key] = cute.compile(kernel, *tensors[:first], tensors[first:], 1.0, 1.0, 0)
    launches.run_on(
        compiled, given, tensors, (alpha, beta), (*tensors[:first], tensors[first:], float(alpha), float(beta))
    )


class _Views:
    """The arrays of a product as the kernel takes them: three modes, D's rows contiguous."""

    def __init__(self, shape: tuple[int, int, int], a: Any, b: Any, out: Any, others: list[Any]) -> None:
        batches = shape[0]
        a, b, out = (x if x.ndim == 3 else arrays.with_batch(x) for x in (a, b, out))
        a, b = (arrays.broadcast_to(_readable(x), (batches, *x.shape[1:])) for x in (a, b))
        others = [arrays.broadcast_to(x, shape) for x in others]
        self.swapped = arrays.leading_mode(out, (1, 2)) == 1
        """Whether columns of D are contiguous: its transpose is computed."""
        if self.swapped:
            a, b, out = (arrays.transposed(x) for x in (b, a, out))
            others = [arrays.transposed(x) for x in others]
        arrays.require(
            arrays.leading_mode(out, (2,)) == 2,
            f"gemm into strides {arrays.strides(out)}: rows or columns are contiguous",
        )
        self.a, self.b, self.out = a, b, out
        self.others = others
        self.width = arrays.access_width(out, 2)
        self.other_widths = tuple(arrays.access_width(x, 2) if arrays.leading_mode(x, (2,)) == 2 else 1 for x in others)
        self._leading = arrays.leading_mode(a, (1, 2)), arrays.leading_mode(b, (2, 1))
        self.operands = [_operand(x, mode, k) for x, mode, k in zip((a, b), self._leading, (2, 1), strict=True)]

    def tensors(self) -> tuple[list[Any], Any]:
        """A and B, and D, as arguments."""
        pairs = zip((self.a, self.b), self._leading, self.operands, strict=True)
        return [arrays.dynamic(x, mode, o.width) for x, mode, o in pairs], arrays.dynamic(self.out, 2, self.width)

    def shown(self) -> list[Any]:
        """The other arrays as arguments."""
        found = []
        for x, width in zip(self.others, self.other_widths, strict=True):
            rows = arrays.leading_mode(x, (2,)) == 2
            found.append(arrays.dynamic(x, 2 if rows else arrays.leading_mode(x, (0, 1)), width))
        return found


def _readable(x: Any) -> Any:
    """An operand of which one of the last two modes is contiguous: itself or a copy."""
    there = arrays.leading_mode(x, (1, 2)) is not None and min(arrays.strides(x)) >= 0
    return x if there else arrays.contiguous(x)


_NARROW = 1 << 31
"""Bytes a tile may reach over for offsets of 32 bits, each mode by itself."""
_MOST_ROWS = 1 << 12
"""More than any tile has, in rows or in K."""


def _operand(x: Any, leading: Any, k_mode: int) -> Operand:
    """The kind of an operand, its element type still to be read from it."""
    width = arrays.access_width(x, leading)
    wide = any(s * _MOST_ROWS * arrays.itemsize(x) >= _NARROW for s in arrays.strides(x)[1:])
    return Operand(None, leading == k_mode, width, wide)


def _zeros(x: Any, k_mode: int) -> Any:
    """An array like `x`, which has no elements because K is 0, with K of 1."""
    shape = list(x.shape)
    shape[k_mode] = 1
    made = arrays.empty(x, tuple(shape), None)
    arrays.fill(made, 0)
    return made


def _check_broadcast(name: str, given: tuple[int, ...], shape: tuple[int, int, int]) -> None:
    fits = len(given) <= 3 and all(x in (1, s) for x, s in zip(reversed(given), reversed(shape), strict=False))
    arrays.require(
        fits,
        f"gemm: {name} of shape {given} is not broadcast to a result of {shape}",
        hint="a row is (N,), a column (M, 1)",
    )


def _check_parameters(what: str, function: Any, extras: int) -> None:
    """Refuse a user's function that does not take the value and the extras."""
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something built in
        return
    try:
        signature.bind(*range(1 + extras))
    except TypeError as wrong:
        given = f"the value and {extras} extras" if extras else "the value"
        raise arrays.refusal(f"gemm: the {what} is called with {given}: {wrong}") from None


def _check_types(a: Any, b: Any) -> None:
    mixed = {a, b} <= set(FLOAT8) or {a, b} <= {Int8, Uint8}
    arrays.require(
        mixed or (a is b and a in (Float16, BFloat16, Float32)),
        f"gemm of {a.__name__} and {b.__name__}",
        hint="both Float16, BFloat16 or Float32, or 8-bit floats, or 8-bit integers",
    )
