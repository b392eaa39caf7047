"""`gemm`: matrix products of arrays as they lie, with what follows them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .. import cute, utils
from ..base_dsl import sanitizing
from ..base_dsl.dependencies import Dependencies
from ..base_dsl.static_key import static_key
from ..base_dsl.target import target_key, target_name
from ..base_dsl.typing import BFloat16, Float16, Float32, Int8, Uint8
from . import arrays, gemm_tiling, plans
from .gemm_feed import Operand
from .gemm_tiling import Tiling
from .prepared import Prepared
from .simt_gemm import SimtGemm
from .split_gemm import SplitSum
from .tensor_core_gemm import FLOAT8, TensorCoreGemm

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


# --- the function ----------------------------------------------------------------------------------------------------


@arrays.of_any_library
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
    tiling: Tiling | None = None,
) -> Any:
    """`epilogue(activation(alpha * a @ b + beta * c + bias), *extras)`, written to `out` or to a new array.

    `a` is (M, K) or (L, M, K), `b` is (K, N) or (L, K, N), each contiguous along either of its last two modes; one of
    them may lack L. Elements: f16, bf16, f32, 8-bit floats, 8-bit integers. `c`, `bias` and `extras` are broadcast to the
    result: a bias of N is a row. `activation` is "relu", "silu", "gelu" or a function of a value; `epilogue` a function of
    the value and of each of the `extras`, element by element, in f32. Sums are made in f32, of integers in i32; `out_dtype`
    is the framework's (default: the type of `a`; f32 for 8-bit floats, i32 for integers). `precision` is for f32: "ieee"
    multiplies it as it is, "tf32" rounds both factors to 10 bits of mantissa and uses the tensor cores.
    """
    # A call of a small product costs as much as this does: no function is called that need not be.
    if a.__class__ is b.__class__ and arrays.is_torch(a) and (out is None or out.__class__ is a.__class__):
        at_a, at_b = a.data_ptr(), b.data_ptr()
        key: Any = (
            "gemm", a.dtype, a.shape, a.stride(), b.dtype, b.shape, b.stride(), at_a & 15 | (at_b & 15) << 4, a.get_device(),
            target_key(), None if out is None else (out.dtype, out.shape, out.stride(), out.data_ptr() & 15),
        )  # fmt: skip
    else:
        at_a, at_b = arrays.address(a), arrays.address(b)
        key = ("gemm", arrays.signature(a), arrays.signature(b), target_key(), arrays.signature(out))
    if not (c is bias is activation is epilogue is tiling is out_dtype is None) or extras or precision != "ieee":
        key = (*key, _options(c, bias, activation, epilogue, extras, tiling, out_dtype), precision)
    if alpha != 1.0:
        key = (*key, "scaled")
    plan = plans.find(key)
    if plan is None or not plan.holds():
        request = Request(a, b, out, out_dtype, alpha, c, bias, activation, epilogue, tuple(extras), precision, tiling)
        plan = plans.keep(key, request.plan())
    return plan.run(a, at_a, b, at_b, out, c, bias, extras, alpha, beta)


def _options(
    c: Any, bias: Any, activation: Any, epilogue: Any, extras: Sequence[Any], tiling: Any, out_dtype: Any
) -> tuple[Any, ...]:
    """What a plan depends on besides the arrays of the product."""
    arguments = tuple(map(arrays.signature, (c, bias, *extras)))
    functions = tuple(f if f is None or f.__class__ is str else static_key(f) for f in (activation, epilogue))
    return arguments, functions, tiling, out_dtype


class Plan:
    """How a product of arrays of certain types, shapes and strides is called."""

    def __init__(self, request: Request) -> None:
        shape = request.shape[1:] if request.flat else request.shape
        self._make_out = functools.partial(arrays.maker(request.a), shape, request.out_type())
        self._swapped = False
        self._quick: Prepared | None = None
        self._compiled: Any = None
        self._arguments: Callable[..., tuple[list[Any], list[Any]]] | None = None
        self._parts: Parts | None = None
        self._inner: Plan | None = None
        self._width = 1
        users = [f for f in (request.activation, request.epilogue) if callable(f)]
        self._users = [Dependencies(f) for f in users if hasattr(f, "__code__")]

    def holds(self) -> bool:
        """Whether all that the user's functions read is as it was."""
        return not self._users or all(user.unchanged() for user in self._users)

    def prepare(self, compiled: Any, tensors: list[Any], swapped: bool) -> None:
        """Call compiled code at addresses alone."""
        self._quick = Prepared(compiled, tensors)
        self._swapped = swapped

    def split(self, parts: Parts, inner: Plan, compiled: Any, tensors: list[Any], width: int) -> None:
        """Call two compiled functions."""
        self._parts = parts
        self._inner = inner
        self._compiled = compiled
        self._width = width
        if inner._quick is not None:
            self._quick = Prepared(compiled, tensors)

    def _run_parts(
        self, a: Any, at_a: int, b: Any, at_b: int, out: Any, others: list[Any], alpha: float, beta: float
    ) -> None:
        inner, stream = self._inner, arrays.stream_of(a)
        assert self._parts is not None
        assert inner is not None
        if self._quick is not None and inner._quick is not None:
            sums = self._parts.sums(a)
            at = arrays.address(sums)
            inner._quick([at_b, at_a, at] if inner._swapped else [at_a, at_b, at], (1.0, 1.0, stream))
            self._quick([at, arrays.address(out), *map(arrays.address, others)], (alpha, beta, stream))
            return
        left, right, sums = self._parts.arrays(a, b)
        inner.run(left, arrays.address(left), right, arrays.address(right), sums, None, None, (), 1.0, 1.0)
        shape = (1, *out.shape[-2:])
        shown = [arrays.broadcast_to(x, shape) for x in others]
        shown = [arrays.dynamic(x, arrays.leading_mode(x, (0, 1, 2)), 1) for x in shown]
        target = arrays.dynamic(out if out.ndim == 3 else out[None], 2, self._width)
        given = arrays.dynamic(sums, 2, self._width)
        self._compiled(given, target, shown, float(alpha), float(beta), stream)

    def convert(self, compiled: Any, arguments: Callable[..., tuple[list[Any], list[Any]]]) -> None:
        """Call compiled code with arrays converted at each call."""
        self._compiled = compiled
        self._arguments = arguments

    def run(
        self, a: Any, at_a: int, b: Any, at_b: int, out: Any, c: Any, bias: Any, extras: Sequence[Any], alpha: float,
        beta: float,
    ) -> Any:  # fmt: skip
        """Make the call, with A and B at some addresses."""
        if out is None:
            out = self._make_out()
        if self._parts is not None:
            others = [x for x in (c, bias, *extras) if x is not None]
            self._run_parts(a, at_a, b, at_b, out, others, alpha, beta)
        elif self._quick is not None:
            address = arrays.address
            where = [at_b, at_a, address(out)] if self._swapped else [at_a, at_b, address(out)]
            if c is not None:
                where.append(address(c))
            if bias is not None:
                where.append(address(bias))
            if extras:
                where += map(address, extras)
            self._quick(where, (alpha, beta, arrays.stream_of(a)))
        elif self._arguments is not None:
            others = [x for x in (c, bias) if x is not None] + list(extras)
            tensors, shown = self._arguments(a, b, out, others)
            self._compiled(*tensors, shown, float(alpha), float(beta), arrays.stream_of(a))
        return out


class Parts:
    """The operands of a product as a batch of products, each of a part of K."""

    def __init__(self, a: Any, b: Any, splits: int, shape: tuple[int, int, int]) -> None:
        _, m, n = shape
        k = a.shape[-1] // splits
        self._a_shape, self._b_shape = (m, splits, k), (splits, k, n)
        self._sums_shape = (splits, m, n)
        self._make = arrays.maker(a)
        self._type = arrays.named_type(a, "float32")

    def sums(self, a: Any) -> Any:
        """A new array of the sums of each part."""
        return self._make(self._sums_shape, self._type)

    def arrays(self, a: Any, b: Any) -> tuple[Any, Any, Any]:
        """Views of A and B, and a new array of sums."""
        a, b = (x if x.ndim == 2 else x[0] for x in (a, b))
        return arrays.permuted(a.reshape(self._a_shape), [1, 0, 2]), b.reshape(self._b_shape), self.sums(a)


@dataclasses.dataclass
class Request:
    """What `gemm` is asked for."""

    a: Any
    b: Any
    out: Any
    out_dtype: Any
    alpha: float
    c: Any
    bias: Any
    activation: Any
    epilogue: Any
    extras: tuple[Any, ...]
    precision: str
    tiling: Tiling | None

    @property
    def flat(self) -> bool:
        """Whether there are no batches."""
        return self.a.ndim == self.b.ndim == 2

    @functools.cached_property
    def shape(self) -> tuple[int, int, int]:
        """The batches, rows and columns of the result."""
        a, b = self.a, self.b
        arrays.require(a.ndim in (2, 3) and b.ndim in (2, 3), f"gemm of arrays of {a.ndim} and {b.ndim} modes: 2 or 3")
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
            return self.out_dtype
        name = str(self.a.dtype).rpartition(".")[2]
        wanted = "float32" if name.startswith("float8") else "int32" if name in ("int8", "uint8") else None
        return None if wanted is None else arrays.named_type(self.a, wanted)

    def plan(self) -> Plan:
        """How to call it; compiles the kernel unless there is one."""
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
        plan = Plan(self)
        out = self.out if self.out is not None else plan._make_out()
        arrays.require(
            tuple(out.shape) == (shape[1:] if out.ndim == 2 and shape[0] == 1 else shape),
            f"gemm of shape {shape[1:] if self.flat else shape} into an array of {tuple(out.shape)}",
        )
        if 0 in shape:
            return plan
        arrays.require(self.a.shape[-1] > 0, "gemm with K = 0")
        arrays.require(
            self.epilogue is not None or not self.extras,
            f"gemm with {len(self.extras)} extras and no epilogue",
            hint="epilogue=lambda value, x: ..., extras=[x]",
        )
        for name, x in (("c", self.c), ("bias", self.bias), *(("extras", x) for x in self.extras)):
            if x is not None:
                _check_broadcast(name, tuple(x.shape), shape)
        others = [x for x in (self.c, self.bias) if x is not None] + list(self.extras)
        views = _Views(shape, self.a, self.b, out, others)
        tensors, result = views.tensors()
        dtypes = [t.element_type for t in tensors]
        _check_types(*dtypes)
        operands = [dataclasses.replace(o, dtype=t) for o, t in zip(views.operands, dtypes, strict=True)]
        tiling, simt = self._tiling(operands, result.element_type, views)
        if tiling.splits > 1:
            return self._split_plan(plan, tiling, views, result)
        kernel = self._kernel(operands, result.element_type, views, tiling, simt)
        arguments = [*tensors, result, *views.shown()]
        compiled = _compiled(kernel, arguments)
        if target_name() == "cpu" or sanitizing.kinds() or views.copied:
            plan.convert(compiled, views.again)
        else:
            plan.prepare(compiled, arguments, views.swapped)
        return plan

    def _tiling(self, operands: list[Operand], out_type: Any, views: _Views) -> tuple[Tiling, bool]:
        """How it is cut, and whether without tensor cores."""
        dtype = operands[0].dtype
        simt = gemm_tiling.uses_simt(dtype, self.precision)
        capacity = utils.get_smem_capacity_in_bytes()
        batches, m, n = self.shape
        k = self.a.shape[-1]
        tiling = self.tiling
        if tiling is None:
            k_major = all(o.k_major for o in operands)
            cut = (batches, n, m) if views.swapped else (batches, m, n)
            # parts are added in f32, along rows
            may_split = not views.swapped and dtype not in (Int8, Uint8)
            tiling = gemm_tiling.chosen(dtype, simt, k_major, out_type.width, cut, k, capacity, may_split)
        tiling.check_splits(k, batches)
        arrays.require(
            tiling.splits == 1 or not (views.swapped or dtype in (Int8, Uint8)),
            f"{tiling}: K is cut into parts only for floats, into a result whose rows are contiguous",
        )
        if simt:
            tiling.check_simt(capacity)
        else:
            tiling.check(dtype.width, gemm_tiling.k_step(dtype), out_type.width, capacity)
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
        key = (*key, *has, static_key(chosen), static_key(self.epilogue), scaled)
        found = _kernels.get(key)
        if found is None or not all(user.unchanged() for user in found[1]):
            users = [Dependencies(f) for f in (chosen, self.epilogue) if hasattr(f, "__code__")]
            found = _kernels[key] = (make(_combiner(*has, chosen, self.epilogue, scaled)), users)
        return found[0]

    def _kernel(self, operands: list[Operand], out_type: Any, views: _Views, tiling: Tiling, simt: bool) -> Any:
        integers = operands[0].dtype in (Int8, Uint8)
        follows = bool(views.others) or self.activation is not None or self.epilogue is not None
        scaled = not integers or self.alpha != 1.0 or follows
        kind = SimtGemm if simt else TensorCoreGemm
        a, b = operands
        key = (kind, a, b, out_type, views.width, tiling)
        return self._combine(key, scaled, lambda combine: kind(a, b, out_type, views.width, tiling, combine))

    def _split_plan(self, plan: Plan, tiling: Tiling, views: _Views, result: Any) -> Plan:
        """Two kernels: the parts of K as a batch, then their sum and what follows it."""
        parts = Parts(self.a, self.b, tiling.splits, self.shape)
        a, b, sums = parts.arrays(self.a, self.b)
        whole = dataclasses.replace(tiling, splits=1)
        inner = Request(a, b, sums, None, 1.0, None, None, None, None, (), self.precision, whole).plan()
        width = min(views.width, arrays.access_width(sums, 2))
        out_type = result.element_type
        kernel = self._combine((SplitSum, out_type, width), True, lambda combine: SplitSum(out_type, width, combine))
        given, target = arrays.dynamic(sums, 2, width), arrays.dynamic(views.out, 2, width)
        shown = views.shown()
        key = (kernel, target_key(), *(t.__kiln_argument__()[0] for t in (given, target, *shown)))
        compiled = _functions.get(key)
        if compiled is None:
            compiled = _functions[key] = cute.compile(kernel, given, target, shown, 1.0, 1.0, 0)
        plan.split(parts, inner, compiled, [given, target, *shown], width)
        return plan


_kernels: dict[Any, tuple[Any, list[Dependencies]]] = {}
_functions: dict[Any, Any] = {}


def _compiled(kernel: Any, tensors: list[Any]) -> Any:
    """The compiled function of a kernel for tensors of some kinds."""
    key = (kernel, target_key(), *(t.__kiln_argument__()[0] for t in tensors))
    found = _functions.get(key)
    if found is None:
        a, b, d, *extras = tensors
        found = _functions[key] = cute.compile(kernel, a, b, d, extras, 1.0, 1.0, 0)
    return found


class _Views:
    """The arrays of a product as the kernel takes them: three modes, D's rows contiguous."""

    def __init__(self, shape: tuple[int, int, int], a: Any, b: Any, out: Any, others: list[Any]) -> None:
        self._shape = shape
        batches = shape[0]
        a, b, out = (x if x.ndim == 3 else x[None] for x in (a, b, out))
        a, b = (arrays.broadcast_to(x, (batches, *x.shape[1:])) for x in (a, b))
        others = [arrays.broadcast_to(x, shape) for x in others]
        self.swapped = arrays.leading_mode(out, (1, 2)) == 1
        """Whether columns of D are contiguous: its transpose is computed."""
        if self.swapped:
            a, b, out = (_transposed(x) for x in (b, a, out))
            others = [_transposed(x) for x in others]
        arrays.require(
            arrays.leading_mode(out, (2,)) == 2,
            f"gemm into strides {arrays.strides(out)}: rows or columns are contiguous",
        )
        self.copied = False
        self.a, a_leading = self._contiguous(a, 2)
        self.b, b_leading = self._contiguous(b, 1)
        self.out = out
        self.others = others
        self.width = arrays.access_width(out, 2)
        self._leading = (a_leading, b_leading)
        self.operands = [_operand(self.a, a_leading, 2), _operand(self.b, b_leading, 1)]

    def _contiguous(self, x: Any, k_mode: int) -> tuple[Any, int]:
        """An operand and its contiguous mode; a row or a column of any stride is copied."""
        leading = arrays.leading_mode(x, (3 - k_mode, k_mode))
        if leading is None and 1 in x.shape[1:]:
            x = arrays.contiguous(x)
            self.copied = True
            leading = arrays.leading_mode(x, (3 - k_mode, k_mode))
        if leading is None:
            raise arrays.refusal(
                f"gemm of strides {arrays.strides(x)}", hint="one of the last two modes is contiguous: make a copy"
            )
        return x, leading

    def tensors(self) -> tuple[list[Any], Any]:
        """A and B, and D, as arguments."""
        pairs = zip((self.a, self.b), self._leading, self.operands, strict=True)
        return [arrays.dynamic(x, mode, o.width) for x, mode, o in pairs], arrays.dynamic(self.out, 2, self.width)

    def shown(self) -> list[Any]:
        """The other arrays as arguments."""
        return [arrays.dynamic(x, arrays.leading_mode(x, (0, 1, 2)), 1) for x in self.others]

    def again(self, a: Any, b: Any, out: Any, others: list[Any]) -> tuple[list[Any], list[Any]]:
        """The arguments of a later call, with arrays of the same shapes and strides."""
        views = _Views(self._shape, a, b, out, others)
        tensors, result = views.tensors()
        return [*tensors, result], views.shown()


def _transposed(x: Any) -> Any:
    return x.swapaxes(1, 2)


_NARROW = 1 << 31
"""Bytes a tile may reach over for offsets of 32 bits, each mode by itself."""
_MOST_ROWS = 1 << 12
"""More than any tile has, in rows or in K."""


def _operand(x: Any, leading: int, k_mode: int) -> Operand:
    """The kind of an operand, its element type still to be read from it."""
    width = arrays.access_width(x, leading)
    wide = any(s * _MOST_ROWS * arrays.itemsize(x) >= _NARROW for s in arrays.strides(x)[1:])
    return Operand(None, leading == k_mode, width, wide)


def _check_broadcast(name: str, given: tuple[int, ...], shape: tuple[int, int, int]) -> None:
    fits = len(given) <= 3 and all(x in (1, s) for x, s in zip(reversed(given), reversed(shape), strict=False))
    arrays.require(
        fits,
        f"gemm: {name} of shape {given} is not broadcast to a result of {shape}",
        hint="a row is (N,), a column (M, 1)",
    )


def _check_types(a: Any, b: Any) -> None:
    mixed = {a, b} <= set(FLOAT8) or {a, b} <= {Int8, Uint8}
    arrays.require(
        mixed or (a is b and a in (Float16, BFloat16, Float32)),
        f"gemm of {a.__name__} and {b.__name__}",
        hint="both Float16, BFloat16 or Float32, or 8-bit floats, or 8-bit integers",
    )
