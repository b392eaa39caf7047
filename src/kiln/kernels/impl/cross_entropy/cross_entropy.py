"""Cross-entropy of logits with classes, and its gradient."""

from __future__ import annotations

from typing import Any

from .... import Float32
from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ..rowwise.arguments import as_rows, target_for
from .implementations import REGISTRY, Given
from .problem import CrossEntropyProblem

__all__ = ["cross_entropy", "cross_entropy_backward"]


def _check(name: str, logits: Any, target: Any, smoothing: float) -> None:
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
    config: Any = None,
) -> Any:
    """The cross-entropy of the softmax of logits, along the last mode, with the classes in `target` (Int32 or Int64), in f32.

    `reduction` is "none" for the loss of each row, "sum", or "mean" over rows that count: those whose class is
    `ignore_index` have loss 0 and do not. `label_smoothing` is the part of a label that is spread evenly over all classes. The
    loss of a row whose class does not exist is NaN. With `return_lse` also the logarithms of the sums of the rows' exponentials,
    which the gradient takes.
    """
    name, smoothed = "cross_entropy", label_smoothing != 0.0
    asked = CrossEntropyProblem(arrays.layout_of(logits), arrays.layout_of(target), reduction, smoothed)
    _check(name, logits, target, label_smoothing)
    shape, real = tuple(target.shape), arrays.framework_dtype(Float32, logits)
    together = reduction != "none"
    if together and not return_lse and 0 not in shape:  # neither is given back: one array for both
        losses, lse = arrays.slices(arrays.empty(logits, (2, *shape), real))
    else:
        losses, lse = arrays.empty(logits, shape, real), arrays.empty(logits, shape, real)
    total = arrays.empty(logits, (), real) if together else None
    if 0 in shape:
        if together:
            arrays.fill(total, 0.0 if reduction == "sum" else float("nan"))
    else:
        rows, classes = as_rows(logits), arrays.contiguous(target)
        if rows is not logits or classes is not target:
            asked = CrossEntropyProblem(arrays.layout_of(rows), arrays.layout_of(classes), reduction, smoothed)
        given = Given(rows, classes, lse, ignore_index, label_smoothing, losses, total)
        REGISTRY.run(asked, devices.current(), given, config)
    loss = total if together else losses
    return (loss, lse) if return_lse else loss


@kernel_function("logits", "target", "lse", "out", other_arrays=("dloss",))
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
    config: Any = None,
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
    name, smoothed, number = "cross_entropy_backward", label_smoothing != 0.0, type(dloss) in (int, float)
    outer = None if number else arrays.element_type(dloss)
    asked = CrossEntropyProblem(
        arrays.layout_of(logits), arrays.layout_of(target), reduction, smoothed, arrays.layout_of(out), outer
    )
    _check(name, logits, target, label_smoothing)
    arrays.require_usable(out, "out", written=True)
    arrays.require(
        tuple(lse.shape) == tuple(target.shape) and arrays.element_type(lse) is Float32,
        f"{name} with lse of shape {tuple(lse.shape)} and type {arrays.element_type(lse).__name__}",
        hint=f"what cross_entropy gave with return_lse: {tuple(target.shape)}, Float32",
    )
    if not number:
        arrays.require_usable(dloss, "dloss")
        each = reduction == "none"
        wanted = tuple(target.shape) if each else ()
        arrays.require(
            tuple(dloss.shape) == wanted or (not each and tuple(dloss.shape) == (1,)),
            f"{name} with dloss of shape {tuple(dloss.shape)} and reduction {reduction!r}: its shape is {wanted}",
        )
    if 0 in logits.shape:
        return out
    rows, aim, classes = as_rows(logits), target_for(out), arrays.contiguous(target)
    if rows is not logits or aim is not out or classes is not target:
        laid = arrays.layout_of
        asked = CrossEntropyProblem(laid(rows), laid(classes), reduction, smoothed, laid(aim), outer)
    outside = dloss if number else arrays.contiguous(dloss)
    given = Given(rows, classes, arrays.contiguous(lse), ignore_index, label_smoothing, out=aim, dloss=outside)
    REGISTRY.run(asked, devices.current(), given, config)
    if aim is not out:
        arrays.assign(out, aim)
    return out
