"""Cross-entropy of logits with classes, and its gradient."""

from __future__ import annotations

from typing import Any

from .... import Float32
from ...dispatch import arrays, devices
from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from ..rowwise.arguments import as_rows, target_for
from .implementations import REGISTRY, CrossEntropyArguments
from .problem import CrossEntropyProblem

__all__ = ["cross_entropy", "cross_entropy_backward"]


def _check(name: str, logits: Any, target: Any, smoothing: float) -> None:
    arrays.require(0.0 <= smoothing <= 1.0, f"{name}: label_smoothing is {smoothing}, and must be 0 to 1")
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
    config: Any = None,
) -> Any:
    """Return the cross-entropy of logits along the last mode, in f32.

    The loss of a row whose class does not exist is NaN.

    Args:
        logits: (..., classes), f16, bf16 or f32.
        target: (...), the class of each row, Int32 or Int64.
        ignore_index: rows of this class have loss 0 and do not count in the mean.
        label_smoothing: the part of a label that is spread evenly over all classes.
        reduction: "mean" over the rows that count, "sum", or "none" for the loss of each row.
        return_lse: also return the log-sum-exp of each row, for the gradient.
        config: a config of an implementation; by default the library chooses.
    """
    name = "cross_entropy"
    smoothed = label_smoothing != 0.0
    problem = CrossEntropyProblem(arrays.layout_of(logits), arrays.layout_of(target), reduction, smoothed)
    _check(name, logits, target, label_smoothing)
    shape = tuple(target.shape)
    real = arrays.framework_dtype(Float32, logits)
    reduced = reduction != "none"
    if reduced and not return_lse and 0 not in shape:  # neither is returned: one array for both
        losses, lse = arrays.slices(arrays.empty(logits, (2, *shape), real))
    else:
        losses = arrays.empty(logits, shape, real)
        lse = arrays.empty(logits, shape, real)
    total = arrays.empty(logits, (), real) if reduced else None
    if 0 in shape:
        if total is not None:
            arrays.fill(total, 0.0 if reduction == "sum" else float("nan"))
    else:
        rows = as_rows(logits)
        classes = arrays.contiguous(target)
        if rows is not logits or classes is not target:
            problem = CrossEntropyProblem(arrays.layout_of(rows), arrays.layout_of(classes), reduction, smoothed)
        args = CrossEntropyArguments(rows, classes, lse, ignore_index, label_smoothing, losses, total)
        REGISTRY.run(problem, devices.current(), args, config)
    loss = total if reduced else losses
    return (loss, lse) if return_lse else loss


@kernel_function("logits", "target", "lse", "out", other_arrays=("dloss",))
def cross_entropy_backward(
    dloss: Any,
    logits: AnyArray,
    target: Any,
    lse: Any = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    out: Any = None,
    config: Any = None,
) -> AnyArray:
    """Return the gradient of the logits from that of the loss. Rows that do not count have gradient 0.

    Args:
        dloss: the gradient of the loss: an array of one number, or of one for each row ("none"), or a Python number.
        logits: as passed to `cross_entropy`.
        target: as passed to `cross_entropy`.
        lse: the log-sum-exp that `cross_entropy` returned with `return_lse`; None computes it again.
        ignore_index: as passed to `cross_entropy`.
        label_smoothing: as passed to `cross_entropy`.
        reduction: as passed to `cross_entropy`.
        out: an array for the result; `out=logits` writes it in their place.
        config: a config of an implementation; by default the library chooses.
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
    name = "cross_entropy_backward"
    smoothed = label_smoothing != 0.0
    number = type(dloss) in (int, float)
    dloss_type = None if number else arrays.element_type(dloss)
    problem = CrossEntropyProblem(
        arrays.layout_of(logits), arrays.layout_of(target), reduction, smoothed, arrays.layout_of(out), dloss_type
    )
    _check(name, logits, target, label_smoothing)
    arrays.require_usable(out, "out", written=True)
    arrays.require(
        tuple(lse.shape) == tuple(target.shape) and arrays.element_type(lse) is Float32,
        f"{name}: lse is {arrays.element_type(lse).__name__} of shape {tuple(lse.shape)}",
        hint=f"that of cross_entropy with return_lse: Float32 of shape {tuple(target.shape)}",
    )
    if not number:
        arrays.require_usable(dloss, "dloss")
        each = reduction == "none"
        shape = tuple(target.shape) if each else ()
        arrays.require(
            tuple(dloss.shape) == shape or (not each and tuple(dloss.shape) == (1,)),
            f"{name}: dloss has shape {tuple(dloss.shape)}, and must have {shape} with reduction {reduction!r}",
        )
    if 0 in logits.shape:
        return out
    rows = as_rows(logits)
    written = target_for(out)
    classes = arrays.contiguous(target)
    if rows is not logits or written is not out or classes is not target:
        layout = arrays.layout_of
        problem = CrossEntropyProblem(layout(rows), layout(classes), reduction, smoothed, layout(written), dloss_type)
    dloss = dloss if number else arrays.contiguous(dloss)
    args = CrossEntropyArguments(
        rows, classes, arrays.contiguous(lse), ignore_index, label_smoothing, out=written, dloss=dloss
    )
    REGISTRY.run(problem, devices.current(), args, config)
    if written is not out:
        arrays.assign(out, written)
    return out
