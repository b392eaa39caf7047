"""Cross-entropy of logits with classes, and its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.typing import Float32, Int32, Int64
from . import arrays, devices, plans
from .loss_kernels import CrossEntropy, CrossEntropyGradient, Loss, Total
from .row_kernel import RowProblem, RowTiling
from .row_plans import FLOATS, matrix_of, taken_as_rows, target_for, unchanged

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cross_entropy", "cross_entropy_backward"]

REDUCTIONS = ("mean", "sum", "none")


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def loss_tiling(n: int, width: int, rows: int, device: devices.Device) -> RowTiling:
    """A block to a row that is long enough for one; more of them where there are few rows."""
    units = -(-n // width)
    row_threads = min(256, max(8, _power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 2 * rows * cluster <= device.multiprocessors and units >= 16 * cluster * 256:
        cluster *= 2
    return RowTiling(max(128, row_threads), row_threads, cluster)


def _check(name: str, logits: Any, target: Any, reduction: str, smoothing: float) -> None:
    arrays.require(logits.ndim >= 1, f"{name} of logits without modes")
    shape, n = tuple(logits.shape), logits.shape[-1] if logits.ndim else 0
    arrays.require(n > 0, f"{name} of logits of shape {shape}: there are no classes")
    arrays.require(
        tuple(target.shape) == shape[:-1],
        f"{name} of logits of shape {shape} with targets of shape {tuple(target.shape)}",
        hint=f"a class for each row: {shape[:-1]}",
    )
    dtype, kind = arrays.element_type(logits), arrays.element_type(target)
    arrays.require(
        dtype in FLOATS, f"{name} of {dtype.__name__} logits", hint="Float16, BFloat16 or Float32: convert the array"
    )
    arrays.require(kind in (Int32, Int64), f"{name} with {kind.__name__} targets: classes are Int32 or Int64")
    arrays.require(reduction in REDUCTIONS, f"{name} with reduction {reduction!r}", hint=", ".join(REDUCTIONS))
    arrays.require(
        0.0 <= smoothing <= 1.0, f"{name} with label_smoothing {smoothing}: it is a part of the label, 0 to 1"
    )
    arrays.require_usable(logits, "logits")
    arrays.require_usable(target, "target")


@arrays.of_any_library
def cross_entropy(
    logits: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    return_lse: bool = False,
    tiling: RowTiling | None = None,
) -> Any:
    """The cross-entropy of the softmax of logits, along the last mode, with the classes in `target` (Int32 or Int64), in f32.

    `reduction` is "none" for the loss of each row, "sum", or "mean" over rows that count: those whose class is
    `ignore_index` have loss 0 and do not. `label_smoothing` is the part of a label that is spread evenly over all classes. The
    loss of a row whose class does not exist is NaN. With `return_lse` also the logarithms of the sums of the rows' exponentials,
    which the gradient takes.
    """
    signature = arrays.signature
    options = (ignore_index, label_smoothing, reduction, tiling)
    key = ("cross_entropy", plans.mode(), options, signature(logits), signature(target))
    plan = plans.find(key) or plans.keep(key, _plan(logits, target, *options))
    loss, lse = plan(logits, target)
    return (loss, lse) if return_lse else loss


def _plan(
    logits: Any, target: Any, ignored: int, smoothing: float, reduction: str, tiling: RowTiling | None
) -> Callable[[Any, Any], tuple[Any, Any]]:
    _check("cross_entropy", logits, target, reduction, smoothing)
    shape, real = tuple(target.shape), arrays.framework_dtype(Float32, logits)

    def results(logits: Any) -> tuple[Any, ...]:
        return arrays.empty(logits, shape, real), arrays.empty(logits, shape, real)

    if 0 in shape:

        def nothing(logits: Any, target: Any) -> tuple[Any, Any]:
            losses, lse = results(logits)
            if reduction == "none":
                return losses, lse
            total = arrays.empty(logits, (), real)
            total[...] = 0.0 if reduction == "sum" else float("nan")
            return total, lse

        return nothing
    taken = taken_as_rows(logits), arrays.contiguous(target)
    laid = matrix_of(taken[0])
    assert laid is not None
    device, loss = devices.current(), Loss(arrays.element_type(target), smoothing != 0.0, averaged=reduction == "mean")
    chosen = tiling or loss_tiling(laid.n, laid.width, laid.rows, device)
    dtype = arrays.element_type(logits)
    chosen.check(laid.n, laid.width, dtype.width, 1, device)
    arrays.require(
        chosen.stages == 0 and chosen.resident == 0,
        f"{chosen}: the rows of a loss are not held: no stages, none resident",
    )
    problem = RowProblem((dtype,), (), (), 0, 0, laid.width, 0, False, chosen)
    blocks = -(-laid.rows // chosen.rows) * chosen.cluster
    run = plans.launcher(
        plans.made(CrossEntropy, problem, loss), [*taken, *results(logits)], Int32(laid.rows), Int32(laid.n),
        Int64(laid.step), Int64(ignored), Float32(smoothing), Int32(blocks),
    )  # fmt: skip
    as_rows = unchanged if taken[0] is logits else taken_as_rows
    packed = unchanged if arrays.is_contiguous(target) else arrays.contiguous
    if reduction == "none":

        def each(logits: Any, target: Any) -> tuple[Any, Any]:
            losses, lse = results(logits)
            run([as_rows(logits), packed(target), losses, lse])
            return losses, lse

        return each
    add = _total(loss, logits, taken[1], laid.rows, ignored)

    def together(logits: Any, target: Any) -> tuple[Any, Any]:
        losses, lse = results(logits)
        target = packed(target)
        run([as_rows(logits), target, losses, lse])
        total, count = (arrays.empty(logits, (), real) for _ in range(2))
        add([losses, target, total, count])
        return total, lse

    return together


def _total(loss: Loss, like: Any, target: Any, rows: int, ignored: int) -> Callable[[Any], None]:
    """A function of losses, targets, their sum or mean, and the number of rows that count."""
    real = arrays.framework_dtype(Float32, like)
    shown = [arrays.empty(like, tuple(target.shape), real), target, *(arrays.empty(like, (), real) for _ in range(2))]
    return plans.launcher(plans.made(Total, loss), shown, Int32(rows), Int64(ignored))


@arrays.of_any_library
def cross_entropy_backward(
    dloss: Any,
    logits: Any,
    target: Any,
    lse: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    out: Any = None,
    tiling: RowTiling | None = None,
) -> Any:
    """The gradient of the logits, from that of the loss `cross_entropy` gave with the same options.

    `dloss` is an array of one number, or with reduction "none" of one for each row; or a Python number. `lse` is what
    `cross_entropy` gave with `return_lse`, or found again. `out=logits` writes the gradient in their place. Rows that do not
    count have gradient 0.
    """
    if lse is None:
        _, lse = cross_entropy(
            logits,
            target,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction="none",
            return_lse=True,
        )
    if out is None:
        out = arrays.empty_like(logits)
    number = type(dloss) in (int, float)
    signature = arrays.signature
    options = (ignore_index, label_smoothing, reduction, tiling)
    key = (
        "cross_entropy_backward", plans.mode(), options, dloss if number else signature(dloss), signature(logits),
        signature(target), signature(lse), signature(out),
    )  # fmt: skip
    plan = plans.find(key) or plans.keep(key, _gradient_plan(dloss, logits, target, lse, out, *options))
    plan(dloss, logits, target, lse, out)
    return out


def _gradient_plan(
    dloss: Any, logits: Any, target: Any, lse: Any, out: Any, ignored: int, smoothing: float, reduction: str,
    tiling: RowTiling | None,
) -> Callable[..., None]:  # fmt: skip
    name = "cross_entropy_backward"
    _check(name, logits, target, reduction, smoothing)
    arrays.require(
        tuple(out.shape) == tuple(logits.shape),
        f"{name} of logits of shape {tuple(logits.shape)} into {tuple(out.shape)}",
    )
    arrays.require_usable(out, "out", written=True)
    arrays.require(arrays.element_type(out) in FLOATS, f"{name} into {arrays.element_type(out).__name__} elements")
    arrays.require(
        tuple(lse.shape) == tuple(target.shape) and arrays.element_type(lse) is Float32,
        f"{name} with lse of shape {tuple(lse.shape)} and type {arrays.element_type(lse).__name__}",
        hint=f"what cross_entropy gave with return_lse: {tuple(target.shape)}, Float32",
    )
    number, each = type(dloss) in (int, float), reduction == "none"
    if not number:
        arrays.require_usable(dloss, "dloss")
        wanted = tuple(target.shape) if each else ()
        arrays.require(
            tuple(dloss.shape) == wanted or (not each and tuple(dloss.shape) == (1,)),
            f"{name} with dloss of shape {tuple(dloss.shape)} and reduction {reduction!r}: its shape is {wanted}",
        )
        arrays.require(
            arrays.element_type(dloss).is_float, f"{name} with dloss of {arrays.element_type(dloss).__name__}"
        )
    if 0 in logits.shape:
        return lambda *given: None
    source, aim = taken_as_rows(logits), target_for(out)
    laid, written = matrix_of(source), matrix_of(aim)
    assert laid is not None
    assert written is not None
    device = devices.current()
    width = min(laid.width, written.width)
    chosen = tiling or RowTiling(128, 128)
    chosen.check(1, width, 32, 1, device)
    outer = None if number else arrays.element_type(dloss)
    averaged = reduction == "mean"
    loss = Loss(arrays.element_type(target), smoothing != 0.0, outer, each and not number, averaged)
    part = chosen.threads * 2 * width
    exact = laid.n % part == 0
    types = (arrays.element_type(logits), arrays.element_type(out))
    kernel = plans.made(CrossEntropyGradient, *types, width, exact, chosen, loss)
    real = arrays.framework_dtype(Float32, logits)
    count = arrays.empty(logits, (), real)
    marks = arrays.contiguous(target)
    given = [source, marks, lse, aim, count, *([] if number else [dloss])]
    arrays.require(laid.rows < 1 << 31, f"{name} of {laid.rows} rows: more than 32 bits count")
    run = plans.launcher(
        kernel, given, Int32(laid.rows), Int32(laid.n), Int64(laid.step), Int64(written.step), Int64(ignored),
        Float32(smoothing), Float32(dloss if number else 0.0), Int32(-(-laid.n // part)),
    )  # fmt: skip
    counting = Loss(loss.target, False, Float32)
    add = _total(counting, logits, marks, laid.rows, ignored) if averaged else None

    def plan(dloss: Any, logits: Any, target: Any, lse: Any, out: Any) -> None:
        count = arrays.empty(logits, (), real)
        target, lse = arrays.contiguous(target), arrays.contiguous(lse)
        if add is not None:
            add([lse, target, count, count])
        aim = target_for(out)
        run([taken_as_rows(logits), target, lse, aim, count, *([] if number else [arrays.contiguous(dloss)])])
        if aim is not out:
            arrays.assign(out, aim)

    return plan
