"""Element-wise functions of arrays: any Python function of values, compiled into one kernel.

Modes that lie alike in all arrays are walked as one. A thread computes a few neighbouring elements: those of arrays in which
they are neighbours too are accessed at once, up to 16 bytes; a repeated element is read once; others are read one by one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import cute
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.static_key import static_key
from ...base_dsl.typing import Int32, Int64, NumericMeta
from ...cute import arch
from ...cute.tensor.tensor_ssa import TensorSSA, VectorTruthError
from .. import devices
from ..common import arrays, launches
from ..common.calls import Reads, kernel_function
from ..common.element_functions import of_arrays, one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ElementTiling", "elementwise"]

_MOST_MODES = 8
_MOST_KERNELS = 1024
_MOST_GRID = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class ElementTiling:
    """How an element-wise function is cut: threads of a block, and neighbouring elements of a thread.

    By default (0) a thread has 16 bytes of the array with the widest elements.
    """

    threads: int = 256
    elements: int = 0

    def check(self, widest: int, device: devices.Device) -> ElementTiling:
        """The tiling for arrays whose widest elements have so many bytes; refuses what cannot work."""
        arrays.require(
            isinstance(self.threads, int) and 32 <= self.threads <= 1024 and self.threads % 32 == 0,
            f"{self}: a block has 32 to 1024 threads, whole warps of 32, not {self.threads!r}",
        )
        arrays.require(
            self.elements in (0, 1, 2, 4, 8, 16, 32),
            f"{self}: a thread has 1, 2, 4, 8, 16 or 32 elements, or 0 for the default, not {self.elements!r}",
        )
        return dataclasses.replace(self, elements=self.elements or max(1, arrays.WIDEST // widest))


class Operand(NamedTuple):
    """How a thread accesses an array: its elements, how many at once (0: all of a thread's are one), neighbours or not."""

    dtype: Any
    width: int
    neighbours: bool


class Elementwise:
    """The kernel of a function, for operands of some kinds; the last is written."""

    def __init__(
        self, function: Callable[..., Any], operands: tuple[Operand, ...], modes: int, whole: bool, wide: bool,
        tiling: ElementTiling,
    ) -> None:  # fmt: skip
        self.function = function
        self.operands = operands
        self.modes = modes
        """Modes beside the innermost."""
        self.whole = whole
        """Whether every thread has all its elements."""
        self.index = Int64 if wide else Int32
        """What elements are counted in."""
        self.tiling = tiling

    @cute.jit
    def __call__(self, places: Any, shape: Any, strides: Any, blocks: Int32, stream: Int64):
        pointers = [
            arrays.pointer(place, operand.dtype, operand.width or 1)
            for place, operand in zip(places, self.operands, strict=True)
        ]
        self.kernel(pointers, shape, strides).launch(
            grid=(blocks, 1, 1), block=(self.tiling.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pointers: Any, shape: Any, strides: Any):
        """`shape` has the extents from the outermost to the innermost mode, `strides` those of each array likewise."""
        elements, inner = self.tiling.elements, shape[self.modes]
        number = self.index(arch.block_idx()[0]) * self.tiling.threads + arch.thread_idx()[0]
        if const_expr(self.modes == 0):
            rest, start = number, number * elements
        else:
            units = (inner + (elements - 1)) // elements
            rest, start = number // units, number % units * elements
        coordinates: list[Any] = []
        for mode in range_constexpr(self.modes - 1, -1, -1):
            if const_expr(mode == 0):
                coordinates.insert(0, rest)
            else:
                coordinates.insert(0, rest % shape[mode])
                rest = rest // shape[mode]
        exists = start < inner if const_expr(self.modes == 0) else coordinates[0] < shape[0]
        if exists:
            moved = [
                self.moved(pointer, operand, stride, coordinates, start)
                for pointer, operand, stride in zip(pointers, self.operands, strides, strict=True)
            ]
            if self.whole or start + elements <= inner:
                self.compute(moved, strides, start, inner, True)
            else:
                self.compute(moved, strides, start, inner, False)

    def moved(self, pointer: Any, operand: Operand, stride: Any, coordinates: Any, start: Any) -> Any:
        """Where a thread's elements of an array begin."""
        offset = Int64(0)
        for coordinate, step in zip(coordinates, stride, strict=False):
            offset = offset + coordinate * step
        if operand.width:
            offset = offset + (start if operand.neighbours else start * stride[self.modes])
        return pointer + cute.assume(offset, divby=operand.width) if operand.width > 1 else pointer + offset

    @cute.jit
    def compute(self, pointers: Any, strides: Any, start: Any, inner: Any, full: Any):
        """All elements of a thread, or those before the end."""
        elements = self.tiling.elements
        values = []
        for k in range_constexpr(len(self.operands) - 1):
            operand = self.operands[k]
            held = cute.make_rmem_tensor((elements,), operand.dtype)
            if const_expr(operand.width == 0):
                held.fill(pointers[k].load())
            elif const_expr(full and operand.neighbours):
                for part in range_constexpr(elements // operand.width):
                    source = cute.make_tensor(pointers[k] + part * operand.width, cute.make_layout(operand.width))
                    cute.autovec_copy(source, cute.local_tile(held, (operand.width,), (part,)))
            else:
                # past the end stands the first element: the function sees nothing that is not there
                held.fill(pointers[k].load())
                for i in range_constexpr(elements):
                    if full or start + i < inner:
                        held[i] = (pointers[k] + self.place(operand, strides[k], i)).load()
            values.append(held.load())
        operand, pointer = self.operands[-1], pointers[-1]
        made = cute.make_rmem_tensor((elements,), operand.dtype)
        made.store(self.result(values).to(operand.dtype))
        if const_expr(full and operand.neighbours):
            for part in range_constexpr(elements // operand.width):
                target = cute.make_tensor(pointer + part * operand.width, cute.make_layout(operand.width))
                cute.autovec_copy(cute.local_tile(made, (operand.width,), (part,)), target)
        else:
            for i in range_constexpr(elements):
                if full or start + i < inner:
                    (pointer + self.place(operand, strides[-1], i)).store(made[i])

    def place(self, operand: Operand, stride: Any, i: int) -> Any:
        """How far a thread's element `i` is from its first."""
        return i if operand.neighbours else stride[self.modes] * i

    def result(self, values: list[Any]) -> Any:
        """What the function gives for values of some elements."""
        made = self.function(*values)
        shape = (self.tiling.elements,)
        return made if isinstance(made, TensorSSA) else cute.full(shape, made, self.operands[-1].dtype)


# --- how arrays lie --------------------------------------------------------------------------------------------------


def broadcast_shape(given: Sequence[Any], name: str) -> tuple[int, ...]:
    """The shape that arrays have together, as numpy finds it."""
    shape: list[int] = []
    for x in given:
        own = tuple(x.shape)
        shape = [1] * (len(own) - len(shape)) + shape
        for mode in range(1, len(own) + 1):
            if own[-mode] != 1 and shape[-mode] not in (1, own[-mode]):
                raise arrays.refusal(
                    f"{name} of arrays of shapes {', '.join(str(tuple(a.shape)) for a in given)}",
                    hint=f"extents are equal or 1, from the last mode on; here {own[-mode]} meets {shape[-mode]}",
                )
            if own[-mode] != 1:
                shape[-mode] = own[-mode]
    return tuple(shape)


def walked(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """Extents and strides of the fewest modes that reach the same elements, the last array's closest ones last."""
    order = [m for m in range(len(shape)) if shape[m] != 1]
    order.sort(key=lambda m: -abs(strides[-1][m]))
    extents: list[int] = []
    steps: list[list[int]] = []
    for mode in order:
        step = [s[mode] for s in strides]
        if steps and all(before == now * shape[mode] for before, now in zip(steps[-1], step, strict=True)):
            extents[-1] *= shape[mode]
            steps[-1] = step
        else:
            extents.append(shape[mode])
            steps.append(step)
    if not extents:
        return [1], [[1] for _ in strides]
    return extents, [list(own) for own in zip(*steps, strict=True)]


def _operand(x: Any, dtype: Any, extents: list[int], steps: list[int], elements: int) -> Operand:
    if steps[-1] == 0 and extents[-1] > 1:
        return Operand(dtype, 0, False)
    if steps[-1] != 1:
        return Operand(dtype, 1, False)
    size = arrays.itemsize(x)
    width = min(elements, max(1, arrays.WIDEST // size))
    while width > 1 and (arrays.address(x) % (width * size) or any(s % width for s in steps[:-1])):
        width //= 2
    return Operand(dtype, width, True)


# --- the function ----------------------------------------------------------------------------------------------------


@kernel_function("out", more=("inputs",))
def elementwise(
    function: Callable[..., Any],
    *inputs: Any,
    out: Any = None,
    out_dtype: Any = None,
    plan: ElementTiling | None = None,
) -> Any:
    """`function(*inputs)`, element by element, written to `out` or to a new array.

    `function` is any Python function of values: arithmetic, comparisons, branches, `cute.math`, `cute.where`. It is traced with
    values of the inputs' own types (narrow floats compute in Float32). Inputs are broadcast as numpy does and may have any
    strides; Python numbers among them are passed to the function as they are, compiled in. The elements of a new array have
    the type of what the function returns, or `out_dtype`, the framework's or Kiln's.
    """
    arrays.require(callable(function), f"elementwise of {type(function).__name__}: the first argument is a function")
    inputs = tuple(x if type(x) in _NUMBERS else arrays.known(x) for x in inputs)
    places = [k for k, x in enumerate(inputs) if type(x) not in _NUMBERS]
    given = [inputs[k] for k in places]
    arrays.require(bool(given), "elementwise without an array", hint="elementwise(lambda a, b: a + b, x, y)")
    for k, x in zip(places, given, strict=True):
        arrays.require_usable(x, f"input {k}")
    shape = broadcast_shape(given, "elementwise")
    dtypes = [arrays.element_type(x) for x in given]
    numbers = {k: x for k, x in enumerate(inputs) if k not in places}

    def applied(function: Any) -> Any:
        def call(*values: Any) -> Any:
            left = iter(values)
            return of_arrays(function, *[numbers[k] if k in numbers else next(left) for k in range(len(inputs))])

        return call

    key = (static_key(function), len(inputs), static_key(numbers))
    reads = Reads([function])
    used = _form(key, reads, lambda: (applied(function), applied(one_by_one(function))), dtypes)
    if out is None:
        if out_dtype is None:
            out_dtype = used.result
        if isinstance(out_dtype, NumericMeta):
            out_dtype = arrays.framework_dtype(out_dtype, given[0])
        out = arrays.empty(given[0], shape, out_dtype)
    else:
        arrays.require(
            tuple(out.shape) == shape, f"elementwise of shape {shape} into an array of shape {tuple(out.shape)}"
        )
        arrays.require_usable(out, "out", written=True)
        arrays.require(
            all(s != 0 or n == 1 for s, n in zip(arrays.strides(out), out.shape, strict=True)),
            f"elementwise into strides {arrays.strides(out)}: elements of out are not repeated",
        )
    _launch(used.function, [*given, out], [*dtypes, arrays.element_type(out)], shape, plan, key, reads)
    return out


_NUMBERS = (int, float, bool)


_kernels: dict[Any, tuple[Elementwise, Reads]] = {}


def _kernel(key: Any, reads: Reads, *arguments: Any) -> Elementwise:
    """One kernel object for equal functions, as long as what they read besides their arguments is the same."""
    found = _kernels.get(key)
    if found is None or not found[1].unchanged():
        if len(_kernels) >= _MOST_KERNELS:
            _kernels.clear()
        found = _kernels[key] = (Elementwise(*arguments), reads)
    return found[0]


class Form(NamedTuple):
    """How a function is called: with vectors, or with one element at a time, and the type of what it returns."""

    function: Callable[..., Any]
    result: Any


_forms: dict[Any, tuple[Form, Reads]] = {}


def _form(key: Any, reads: Reads, choices: Callable[[], tuple[Any, Any]], dtypes: Sequence[Any]) -> Form:
    """How a function is called for values of some types, of two ways; found out once for equal functions."""
    key = (key, tuple(dtypes))
    found = _forms.get(key)
    if found is None or not found[1].unchanged():
        if len(_forms) >= _MOST_KERNELS:
            _forms.clear()
        found = _forms[key] = (_tried(*choices(), dtypes), reads)
    return found[0]


def _tried(whole: Callable[..., Any], single: Callable[..., Any], dtypes: Sequence[Any]) -> Form:
    """The way that works: with vectors, unless it branches on them."""
    try:
        return Form(whole, _result_type(whole, dtypes))
    except VectorTruthError:
        return Form(single, _result_type(single, dtypes))


def _result_type(function: Callable[..., Any], dtypes: Sequence[Any]) -> Any:
    """The type of what a function returns for values of some types."""
    found: list[Any] = []

    @cute.jit
    def probe():
        made = function(*[cute.full((1,), 0, dtype) for dtype in dtypes])
        found.append(made.dtype if isinstance(made, TensorSSA) else made)

    cute.compile(probe)
    made = found[0]
    if isinstance(made, NumericMeta):
        return made
    arrays.require(
        isinstance(made, (bool, int, float, cute.Numeric)),
        f"elementwise: the function returned {'None' if made is None else type(made).__name__}",
        hint="it returns one value for each element",
    )
    return type(made) if isinstance(made, cute.Numeric) else dtypes[0]


def _launch(
    function: Any, given: list[Any], dtypes: list[Any], shape: tuple[int, ...], tiling: Any, key: Any, reads: Any
) -> None:
    """Launch the kernel on arrays, of which the last is written."""
    if 0 in shape:
        return
    wide = [arrays.strides(arrays.broadcast_to(x, shape)) for x in given]
    extents, steps = walked(shape, wide)
    arrays.require(
        len(extents) <= _MOST_MODES,
        f"elementwise of arrays that lie in {len(extents)} ways: at most {_MOST_MODES} modes",
        hint="make some of them contiguous",
    )
    chosen = (tiling or ElementTiling()).check(max(map(arrays.itemsize, given)), devices.current())
    elements = chosen.elements
    operands = tuple(
        _operand(x, dtype, extents, own, elements) for x, dtype, own in zip(given, dtypes, steps, strict=True)
    )
    modes = len(extents) - 1
    units = -(-extents[-1] // elements)
    for extent in extents[:-1]:
        units *= extent
    blocks = -(-units // chosen.threads)
    arrays.require(blocks <= _MOST_GRID, f"elementwise of shape {shape}: {blocks} blocks, and a grid has {_MOST_GRID}")
    wide = (units + chosen.threads) * elements >= 1 << 31
    cut = (operands, modes, extents[-1] % elements == 0, wide, chosen)
    kernel = _kernel((key, *cut), reads, function, *cut)
    strides = tuple(tuple(Int64(s) for s in own) for own in steps)
    launches.launcher(kernel, given, tuple(kernel.index(e) for e in extents), strides, Int32(blocks))(given)
