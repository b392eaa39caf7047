"""Cross-entropy of logits with classes, and its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.typing import Float32, Int32, Int64
from .. import devices
from ..common import arrays, launches
from ..common.calls import kernel_function
from ..rows.edges import in_step
from ..rows.kernel import RowProblem, RowTiling
from ..rows.launching import FLOATS, taken_as_rows, target_for, unchanged
from ..rows.matrices import Matrix, matrix_of
from .kernels import CrossEntropy, CrossEntropyGradient, Loss, Total

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["cross_entropy", "cross_entropy_backward"]

REDUCTIONS = ("mean", "sum", "none")
VECTORS = 2
"""Vectors of a row for which a thread computes gradients."""


def loss_tiling(n: int, width: int, rows: int, device: devices.Device) -> RowTiling:
    """Small blocks, one to a row that is long enough for one; more of them where there are few rows."""
    units = -(-n // width)
    row_threads = min(128, max(8, arrays.power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 4 * rows * cluster <= device.multiprocessors and units >= 4096 * cluster:
        cluster *= 2
    return RowTiling(128, row_threads, cluster, together=8)


def loss_vectors(n: int, width: int, tiling: RowTiling, smoothed: bool) -> int:
    """Vectors of a row that a thread reads at a time; fewer for smoothed labels, which need more registers."""
    return min(4 if smoothed else 8, arrays.power_of_two(-(-n // (width * tiling.row_threads * tiling.cluster))))


def accesses(given: list[Any], laid: list[Matrix]) -> tuple[int, int | None]:
    """Elements of an access to rows, and how many after a multiple of them the first row begins; None: all begin at one."""
    narrow = min(m.width for m in laid)
    found = in_step(given, [m.step for m in laid])
    return (narrow, None) if found is None or found[0] == narrow else found


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


@kernel_function("logits", "target")
def cross_entropy(
    logits: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    return_lse: bool = False,
    plan: RowTiling | None = None,
) -> Any:
    """The cross-entropy of the softmax of logits, along the last mode, with the classes in `target` (Int32 or Int64), in f32.

    `reduction` is "none" for the loss of each row, "sum", or "mean" over rows that count: those whose class is
    `ignore_index` have loss 0 and do not. `label_smoothing` is the part of a label that is spread evenly over all classes. The
    loss of a row whose class does not exist is NaN. With `return_lse` also the logarithms of the sums of the rows' exponentials,
    which the gradient takes.
    """
    loss, lse = _plan(logits, target, ignore_index, label_smoothing, reduction, plan, return_lse)(logits, target)
    return (loss, lse) if return_lse else loss


def _plan(
    logits: Any, target: Any, ignored: int, smoothing: float, reduction: str, plan: RowTiling | None, return_lse: bool
) -> Callable[[Any, Any], tuple[Any, Any]]:
    _check("cross_entropy", logits, target, reduction, smoothing)
    shape, real = tuple(target.shape), arrays.framework_dtype(Float32, logits)

    def results(logits: Any) -> Sequence[Any]:
        if reduction != "none" and not return_lse and 0 not in shape:  # neither is given back: one array for both
            return arrays.slices(arrays.empty(logits, (2, *shape), real))
        return arrays.empty(logits, shape, real), arrays.empty(logits, shape, real)

    if 0 in shape:

        def nothing(logits: Any, target: Any) -> tuple[Any, Any]:
            losses, lse = results(logits)
            if reduction == "none":
                return losses, lse
            total = arrays.empty(logits, (), real)
            arrays.fill(total, 0.0 if reduction == "sum" else float("nan"))
            return total, lse

        return nothing
    taken = taken_as_rows(logits), arrays.contiguous(target)
    laid = matrix_of(taken[0])
    assert laid is not None
    device = devices.current()
    loss = Loss(arrays.element_type(target), smoothing != 0.0, overlaps=device.overlaps)
    together = reduction != "none"
    width, lead = accesses([taken[0]], [laid])
    chosen = plan or loss_tiling(laid.n, width, laid.rows, device)
    dtype = arrays.element_type(logits)
    chosen.check(laid.n, width, dtype.width, 1, device)
    arrays.require(chosen.shared == 0, f"{chosen}: the rows of a loss are not held: nothing is in shared memory")
    vectors = loss_vectors(laid.n, width, chosen, loss.smoothed)
    problem = RowProblem((dtype,), (), (), 0, width, vectors, False, chosen)
    blocks = -(-laid.rows // chosen.rows) * chosen.cluster
    total = launches.made(Total, loss.target, True, reduction == "mean", loss.overlaps) if together else None
    run = launches.launcher(
        launches.made(CrossEntropy, problem, lead is not None, loss, total),
        [*taken, *results(logits), *([arrays.empty(logits, (), real)] if together else [])], Int32(laid.rows),
        Int32(laid.n), Int64(laid.step), Int32(lead or 0), Int64(ignored), Float32(smoothing), Int32(blocks),
    )  # fmt: skip
    as_rows = unchanged if taken[0] is logits else taken_as_rows
    packed = unchanged if arrays.is_contiguous(target) else arrays.contiguous

    def run_on(logits: Any, target: Any) -> tuple[Any, Any]:
        losses, lse = results(logits)
        given = [as_rows(logits), packed(target), losses, lse]
        if not together:
            run(given)
            return losses, lse
        total = arrays.empty(logits, (), real)
        run([*given, total])
        return total, lse

    return run_on


@kernel_function("logits", "target", "lse", "out", more=("dloss",))
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
    plan: RowTiling | None = None,
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
    options = (ignore_index, label_smoothing, reduction, plan)
    _gradient_plan(dloss, logits, target, lse, out, *options)(dloss, logits, target, lse, out)
    return out


def _gradient_plan(
    dloss: Any, logits: Any, target: Any, lse: Any, out: Any, ignored: int, smoothing: float, reduction: str,
    plan: RowTiling | None,
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
    width, lead = accesses([source, aim], [laid, written])
    chosen = plan or RowTiling(128, 128)
    chosen.check(1, width, 32, 1, device)
    outer = None if number else arrays.element_type(dloss)
    averaged = reduction == "mean"
    loss = Loss(arrays.element_type(target), smoothing != 0.0, outer, each and not number, device.overlaps)
    part = chosen.threads * VECTORS * width
    exact = lead is None and laid.n % part == 0
    types = (arrays.element_type(logits), arrays.element_type(out))
    counter = launches.made(Total, loss.target, False, True, loss.overlaps) if averaged else None
    kernel = launches.made(
        CrossEntropyGradient, *types, width, lead is not None, exact, chosen.threads, VECTORS, loss, counter
    )
    real = arrays.framework_dtype(Float32, logits)
    marks = arrays.contiguous(target)
    counts = [arrays.empty(logits, (), real)] if averaged else []
    arrays.require(laid.rows < 1 << 31, f"{name} of {laid.rows} rows: more than 32 bits count")
    run = launches.launcher(
        kernel, [source, marks, lse, aim, *counts, *([] if number else [dloss])], Int32(laid.rows), Int32(laid.n),
        (Int64(laid.step), Int64(written.step)), Int32(lead or 0), Int64(ignored), Float32(smoothing),
        Float32(dloss if number else 0.0), Int32(max(1, -(-laid.n // part))),
    )  # fmt: skip

    def run_on(dloss: Any, logits: Any, target: Any, lse: Any, out: Any) -> None:
        target, lse, aim = arrays.contiguous(target), arrays.contiguous(lse), target_for(out)
        given = [taken_as_rows(logits), target, lse, aim]
        if averaged:
            given.append(arrays.empty(logits, (), real))
        run(given if number else [*given, arrays.contiguous(dloss)])
        if aim is not out:
            arrays.assign(out, aim)

    return run_on
