"""`grouped_gemm`: products of groups of rows, each with a matrix of its own, as in mixtures of experts."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ...dispatch.registry import Implementation, Registry
from ...parts.element_functions import vectors_first
from .arguments import GemmArguments
from .epilogue_fusion import EpilogueFusion, check_parameters
from .gemm import are_blocks, check_broadcast, factors_of_blocks, out_type, readable
from .grouped_problem import GroupedGemmProblem
from .implementations import REGISTRY as PRODUCTS
from .problem import INTEGERS, GemmProblem
from .sm90_grouped import Sm90GroupedGemm
from .sm90_padded import Sm90PaddedGemm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...dispatch.devices import Device

__all__ = ["grouped_gemm"]

REGISTRY = Registry("grouped_gemm")


@kernel_function("a", "b", "offsets", "counts", "out", "scale_a", "scale_b", "extras", numbers=("alpha",))
def grouped_gemm(
    a: Any,
    b: Any,
    *,
    offsets: Any = None,
    counts: Any = None,
    expected_rows: int | None = None,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    scale_a: Any = None,
    scale_b: Any = None,
    activation: str | Callable[[Any], Any] | None = None,
    epilogue: Callable[..., Any] | None = None,
    extras: Sequence[Any] = (),
    config: Any = None,
) -> Any:
    """`epilogue(activation(alpha * rows of a @ b[group]), *extras)` for each group of rows; `b` is (G, K, N).

    With `offsets` (G,) `a` is (T, K), group after group: the rows of a group end before its offset, and begin where those of the one
    before end. What is behind the last offset is not computed. With `counts` (G,) `a` is (G, M, K), of which the first rows of
    each group count; what is in other rows of the result is not defined. Offsets and counts (int32 or int64) are read by the device;
    those that lead out of the array are taken as the nearest that do not. `expected_rows` of a group help to choose how the
    problem is cut (default: T / G, or M). `scale_a` and `scale_b` are factors of blocks of 8-bit floats: (T, K / 128) or
    (G, M, K / 128), and (G, K / 128, N / 128). Elements, `activation`, `epilogue`, `extras`, `out` and `out_dtype` are as in `gemm`.
    """
    arrays.require(
        isinstance(extras, (list, tuple)),
        f"grouped_gemm: extras is {type(extras).__module__}.{type(extras).__qualname__}, no list of arrays",
        hint="extras=[x]",
    )
    arrays.require(
        (offsets is None) != (counts is None),
        f"grouped_gemm with {'neither offsets nor' if offsets is None else 'both offsets and'} counts",
        hint="offsets= of groups that lie one after another, counts= of groups that are as long as the longest",
    )
    arrays.require(
        expected_rows is None or (isinstance(expected_rows, numbers.Integral) and expected_rows > 0),
        f"grouped_gemm with expected_rows={expected_rows!r}: a positive integer",
    )
    bounds = counts if offsets is None else offsets
    shape = _check(a, b, bounds, "counts" if offsets is None else "offsets", offsets is not None)
    scales = () if scale_a is None and scale_b is None else (scale_a, scale_b)
    arrays.require(
        not scales or are_blocks((scale_a, scale_b), shape[-2], shape[-1], a.shape[-1]),
        f"grouped_gemm with factors of shapes {[None if x is None else tuple(x.shape) for x in scales]}",
        hint="of blocks, of a and b: (rows, K / 128) and (G, K / 128, N / 128); of rows: epilogue=lambda value, x: value * x, extras=[x]",
    )
    for name, x in (
        ("a", a),
        ("b", b),
        ("bounds", bounds),
        *(("scales", x) for x in scales),
        *(("extras", x) for x in extras),
    ):
        arrays.require_usable(x, f"grouped_gemm: {name}")
    if out is None:
        out = arrays.empty(a, shape, out_type(a, out_dtype))
    arrays.require_usable(out, "grouped_gemm: out", written=True)
    arrays.require(tuple(out.shape) == shape, f"grouped_gemm of shape {shape} into an array of {tuple(out.shape)}")
    arrays.require(
        arrays.strides(out)[-1] == 1 or out.shape[-1] == 1 or 0 in shape,
        f"grouped_gemm into strides {arrays.strides(out)}: rows are contiguous",
    )
    check_parameters("activation", activation, 0)
    check_parameters("epilogue", epilogue, len(extras))
    arrays.require(
        epilogue is not None or not extras,
        f"grouped_gemm with {len(extras)} extras and no epilogue",
        hint="epilogue=lambda value, x: ..., extras=[x]",
    )
    whole = (1, *shape) if offsets is not None else shape
    for x in extras:
        check_broadcast("extras", tuple(x.shape), whole)
    if 0 in shape or 0 in b.shape:
        if a.shape[-1] == 0:
            raise arrays.refusal("grouped_gemm with a K of 0")
        return out
    for name, x in (("a", a), ("b", b)):
        arrays.require(
            arrays.address(x) != arrays.address(out),
            f"grouped_gemm: out begins where {name} does, which is read after parts of the result are written",
            hint="another array",
        )
    rows = max(1, -(-shape[0] // b.shape[0]) if offsets is not None else shape[1])
    if expected_rows is not None:
        rows = int(expected_rows)

    def run(branching: Sequence[Any]) -> None:
        batched = [arrays.with_batch(x) if offsets is not None else x for x in (a, out)]
        left, right = readable(batched[0]), readable(b)
        others = [arrays.broadcast_to(x, whole) for x in extras]
        scaled = arrays.element_type(a) not in INTEGERS or alpha != 1.0 or bool(others) or activation or epilogue
        follow = EpilogueFusion.of(False, False, activation, epilogue, bool(scaled), branching)
        laid = arrays.layout_of
        blocks = [factors_of_blocks(x, count) for x, count in zip(scales, (whole[0], b.shape[0]), strict=False)]
        problem = GroupedGemmProblem(
            laid(left), laid(right), laid(batched[1]), tuple(map(laid, others)), follow, "ieee", tuple(map(laid, blocks)),
            contiguous=offsets is not None, expected_rows=rows,
        )  # fmt: skip
        given = GemmArguments(left, right, batched[1], others, alpha, block_scales=blocks, group_bounds=bounds)
        REGISTRY.run(problem, devices.current(), given, config)

    vectors_first(run)
    return out


@dataclasses.dataclass(frozen=True)
class PerGroupFallbackConfig:
    """A config: one product after the other, each cut as is expected to take least time."""


@REGISTRY.register
class PerGroupFallback(Implementation):
    """A product for each group, with bounds that the host reads; one for all where the others' rows do no harm."""

    config = PerGroupFallbackConfig

    def supports(self, problem: GroupedGemmProblem, device: Device) -> str | None:
        return None

    def configs(self, problem: GroupedGemmProblem, device: Device) -> list[PerGroupFallbackConfig]:
        return [PerGroupFallbackConfig()]

    def cost(self, problem: GroupedGemmProblem, config: PerGroupFallbackConfig, device: Device) -> float:
        return math.inf

    def run(self, problem: GroupedGemmProblem, config: PerGroupFallbackConfig, given: GemmArguments) -> None:
        device = devices.current()
        if not problem.contiguous:
            laid = GemmProblem(
                problem.a,
                problem.b,
                problem.out,
                problem.epilogue_inputs,
                problem.fusion,
                block_scales=problem.block_scales,
            )
            PRODUCTS.run(laid, device, given)
            return
        ends = [min(max(int(end), 0), problem.out.shape[1]) for end in given.group_bounds.tolist()]
        for group, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            if first >= last:
                continue
            a, out, *others = (x[:, first:last] for x in (given.a, given.out, *given.epilogue_inputs))
            blocks = [x[:, first:last] if n == 0 else x[group : group + 1] for n, x in enumerate(given.block_scales)]
            own = GemmArguments(a, given.b[group : group + 1], out, others, given.alpha, block_scales=blocks)
            left, right, result = map(arrays.layout_of, (a, own.b, out))
            others, blocks = (tuple(map(arrays.layout_of, x)) for x in (others, blocks))
            PRODUCTS.run(GemmProblem(left, right, result, others, problem.fusion, block_scales=blocks), device, own)


REGISTRY.register(Sm90PaddedGemm(Sm90GroupedGemm()))
REGISTRY.register(Sm90GroupedGemm)


def _check(a: Any, b: Any, bounds: Any, name: str, contiguous: bool) -> tuple[int, ...]:
    """The shape of the result."""
    wanted = "(T, K) and (G, K, N)" if contiguous else "(G, M, K) and (G, K, N)"
    arrays.require(
        b.ndim == 3 and a.ndim == (2 if contiguous else 3) and a.shape[-1] == b.shape[1]
        and (contiguous or a.shape[0] == b.shape[0]),
        f"grouped_gemm with {name} of shapes {tuple(a.shape)} and {tuple(b.shape)}",
        hint=wanted,
    )  # fmt: skip
    kind = str(bounds.dtype).rpartition(".")[2]
    arrays.require(
        tuple(bounds.shape) == (b.shape[0],) and kind in ("int32", "int64") and arrays.strides(bounds) in ((1,), (0,)),
        f"grouped_gemm: {name} is {kind} of shape {tuple(bounds.shape)} for {b.shape[0]} groups",
        hint="a contiguous array of int32 or int64, one for each group",
    )
    return (*a.shape[:-1], b.shape[2])
