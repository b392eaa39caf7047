"""`elementwise`: any Python function of the elements of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import NumericMeta, cute
from ....cute import TensorSSA
from ...dispatch import arrays, devices, launches
from ...dispatch.promotion import Promotion, promotion_of
from ...dispatch.recorder import kernel_function
from ...parts.element_functions import Functions, key_of, vectors_first
from .implementations import REGISTRY, ElementwiseArguments
from .problem import ElementwiseProblem, with_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["elementwise"]

_NUMBERS = (int, float, bool)


def broadcast_shape(inputs: Sequence[Any], name: str) -> tuple[int, ...]:
    """Return the common shape of arrays by numpy's broadcasting."""
    shape: list[int] = []
    for x in inputs:
        own = tuple(x.shape)
        shape = [1] * (len(own) - len(shape)) + shape
        for mode in range(1, len(own) + 1):
            if own[-mode] != 1 and shape[-mode] not in (1, own[-mode]):
                raise arrays.refusal(
                    f"{name} of arrays of shapes {', '.join(str(tuple(a.shape)) for a in inputs)}",
                    hint=f"extents are equal or 1, from the last mode on; here {own[-mode]} meets {shape[-mode]}",
                )
            if own[-mode] != 1:
                shape[-mode] = own[-mode]
    return tuple(shape)


@kernel_function("out", other_arrays=("inputs",))
def elementwise(
    function: Callable[..., Any], *inputs: Any, out: Any = None, out_dtype: Any = None, config: Any = None
) -> Any:
    """Return `function(*inputs)`, element by element: one kernel for a whole expression.

    Inputs are broadcast as numpy does and may have any strides.

    Args:
        function: a Python function of values: arithmetic, comparisons, branches, `cute.math`, `cute.where`. It is
            traced with values of the inputs' own types (narrow floats compute in Float32).
        inputs: arrays. Python numbers among them are passed to the function as they are, compiled in.
        out: an array for the result.
        out_dtype: the element type of a new array, the framework's or Kiln's; by default that of what the function
            returns.
        config: a config of the implementation; by default the library chooses.
    """
    arrays.require(callable(function), f"elementwise of {type(function).__name__}: the first argument is a function")
    inputs = tuple(x if type(x) in _NUMBERS else arrays.as_supported(x) for x in inputs)
    places = [k for k, x in enumerate(inputs) if type(x) not in _NUMBERS]
    operands = [inputs[k] for k in places]
    arrays.require(bool(operands), "elementwise without an array", hint="elementwise(lambda a, b: a + b, x, y)")
    for k, x in zip(places, operands, strict=True):
        arrays.require_usable(x, f"input {k}")
    shape = broadcast_shape(operands, "elementwise")
    dtypes = [arrays.element_type(x) for x in operands]
    numbers = {k: x for k, x in enumerate(inputs) if k not in places}
    key = (len(inputs), key_of(numbers))
    promotion = promotion_of(operands, dtypes)
    form = _form(function, numbers, key, dtypes, promotion)
    if out is None:
        if out_dtype is None:
            out_dtype = form.result
        if isinstance(out_dtype, NumericMeta):
            out_dtype = arrays.framework_dtype(out_dtype, operands[0])
        out = arrays.empty(operands[0], shape, out_dtype)
    else:
        arrays.require(
            tuple(out.shape) == shape, f"elementwise of shape {shape} into an array of shape {tuple(out.shape)}"
        )
        arrays.require_usable(out, "out", written=True)
    if 0 not in shape:
        layouts = tuple(arrays.layout_of(arrays.broadcast_to(x, shape)) for x in operands)
        problem = ElementwiseProblem(form.functions, layouts, arrays.layout_of(out), key, numbers, promotion)
        REGISTRY.run(problem, devices.current(), ElementwiseArguments(operands, out), config)
    return out


class Form(NamedTuple):
    """How a function is called, with vectors or with one element at a time, and the type of its result."""

    functions: Functions
    result: type[cute.Numeric]


def _form(
    function: Callable[..., Any],
    numbers: dict[int, Any],
    key: Any,
    dtypes: Sequence[type[cute.Numeric]],
    promotion: Promotion,
) -> Form:
    """Return how a function is called for values of some types; determined once for equal functions."""
    whole = Functions(function)

    def tried(branching: Sequence[Any]) -> Form:
        functions = Functions(function, branching=branching)
        return Form(functions, _result_type(with_numbers(functions.callables()[0], numbers, key[0], promotion), dtypes))

    form = launches.cached_kernel_of(whole, lambda: vectors_first(tried), Form, key, promotion, *dtypes)
    return form._replace(functions=Functions(function, branching=True) if any(form.functions.branching) else whole)


def _result_type(function: Callable[..., Any], dtypes: Sequence[type[cute.Numeric]]) -> Any:
    """Return the type of a function's result for values of some types."""
    results: list[Any] = []

    @cute.jit
    def probe():
        result = function(*[cute.full((1,), 0, dtype) for dtype in dtypes])
        results.append(result.dtype if isinstance(result, TensorSSA) else result)

    cute.compile(probe)
    result = results[0]
    if isinstance(result, NumericMeta):
        return result
    arrays.require(
        isinstance(result, (bool, int, float, cute.Numeric)),
        f"elementwise: the function returned {'None' if result is None else type(result).__name__}",
        hint="it returns one value for each element",
    )
    return type(result) if isinstance(result, cute.Numeric) else dtypes[0]
