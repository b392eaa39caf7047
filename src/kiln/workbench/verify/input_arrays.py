"""Arrays for checks: filled and laid out in several ways, between guard bytes that must not change.

Everything here takes arrays of torch and of numpy; others are passed through.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...base_dsl import packages

KINDS = {
    "normal": "as get_inputs draws them",
    "integers": "small integers, which every accumulator holds exactly",
    "wide": "magnitudes from 2^-8 to 2^8",
    "special": "NaN, infinities, -0 and subnormal numbers among them",
}
LAYOUTS = {
    "": "as get_inputs lays them out",
    "transposed": "the last two modes in the other order in memory",
    "rows apart": "every second row of a larger array, of one mode every second element",
    "shifted": "one element after an aligned address",
}

_ZONE = 4096
_ALIGNMENT = 128
_PATTERN = 0xA5


def _torch() -> Any:
    """Return torch if the program has loaded it."""
    return packages.loaded("torch")


def is_torch(x: object) -> bool:
    """Return whether a value is a tensor of torch."""
    return _torch() is not None and isinstance(x, _torch().Tensor)


def is_floating(x: Any) -> bool:
    """Return whether an array holds floats, narrow ones included."""
    if is_torch(x):
        return x.dtype.is_floating_point
    return isinstance(x, np.ndarray) and _is_float(x.dtype)


def _is_float(dtype: np.dtype) -> bool:
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return dtype.kind == "V" or dtype.name.startswith(("bfloat", "float"))


def _finfo(x: Any) -> Any:
    """Return the limits of an array's floats."""
    return _torch().finfo(x.dtype) if is_torch(x) else ml_dtypes.finfo(x.dtype)


def dtype_name(x: Any) -> str:
    """Return the name of an array's type, for example "float16"."""
    return str(x.dtype).removeprefix("torch.")


def roundoff(x: object) -> float:
    """Return half the distance from 1 to the next number of an array's type; 0 for integers."""
    return float(_finfo(x).eps) / 2 if is_floating(x) else 0.0


# Conversions


def numbers(x: Any) -> np.ndarray:
    """Return an array's elements in numpy: floats as fp64, integers as they are."""
    if is_torch(x):
        x = x.detach()
        x = x.double() if x.dtype.is_floating_point else x
        return x.cpu().resolve_conj().numpy()
    x = np.asarray(x)
    return x.astype(np.float64) if _is_float(x.dtype) else x


def plain(x: object) -> Any:
    """Return an array of another library as one of numpy; torch's and numpy's stay as they are."""
    return x if is_torch(x) or isinstance(x, np.ndarray) else np.asarray(x)


def alike(*arrays: Any) -> tuple[Any, list[Any]]:
    """Return torch or numpy, whichever can compute with all arrays, and their elements there as `numbers` does."""
    if all(map(is_torch, arrays)) and len({x.device for x in arrays}) == 1:
        plain = [x.detach() for x in arrays]
        return _torch(), [x.double() if x.dtype.is_floating_point else x for x in plain]
    return np, [numbers(x) for x in arrays]


def rounded(values: Any, like: Any) -> Any:
    """Round fp64 numbers of torch or numpy once to an array's type, and return them as fp64."""
    if not is_floating(like):
        return values
    if is_torch(like):
        there = values if is_torch(values) else _torch().from_numpy(values)
        back = there.to(like.dtype).double()
        return back if is_torch(values) else back.numpy()
    with np.errstate(over="ignore"):
        return values.astype(like.dtype).astype(np.float64)


def bits(x: Any) -> bytes:
    """Return the bytes of an array's elements, in order."""
    if is_torch(x):
        return x.detach().cpu().contiguous().reshape(-1).view(_torch().uint8).numpy().tobytes()
    return np.ascontiguousarray(x).tobytes()


def clone(x: Any) -> Any:
    """Return a copy with its own memory and the same strides."""
    if is_torch(x):
        return x.detach().clone()
    return x.copy(order="K") if isinstance(x, np.ndarray) else x


def in_fp64(x: Any) -> Any:
    """Return a copy with floats as fp64."""
    if not is_floating(x):
        return clone(x)
    return x.detach().double() if is_torch(x) else x.astype(np.float64)


@contextlib.contextmanager
def computing_in_fp64() -> Iterator[None]:
    """While open, make torch compute in fp64 where narrower floats are asked for: `x.float()` loses nothing."""
    torch = _torch()
    if torch is None:
        yield
        return
    from torch.overrides import TorchFunctionMode

    narrow = {torch.float32, torch.float16, torch.bfloat16}
    casts = {torch.Tensor.float: torch.Tensor.double, torch.Tensor.half: torch.Tensor.double}
    casts[torch.Tensor.bfloat16] = torch.Tensor.double

    def wide(value: object) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Fp64(TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> Any:
            return casts.get(func, func)(
                *map(wide, args), **{name: wide(each) for name, each in (kwargs or {}).items()}
            )

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Fp64():
            yield
    finally:
        torch.set_default_dtype(before)


# Filling

_DRAWN = 16_777_213
"""The number of integers to draw, a prime number; larger arrays repeat them."""


def fill(x: Any, kind: str, seed: int, number: int) -> None:
    """Overwrite the floats of an input with data of a kind; integers, which may be indices, stay."""
    if kind == "normal" or not is_floating(x):
        return
    draw = np.random.default_rng([seed, number])
    if kind == "integers":
        # Not centred on zero: accumulators then exceed the 8 bits of a bf16, and stay exact in fp32.
        values = np.resize(draw.integers(-1, 4, min(math.prod(x.shape), _DRAWN), np.int8), x.shape)
    elif kind == "wide":
        values = np.exp2(draw.uniform(-8, 8, x.shape)) * draw.choice([-1.0, 1.0], x.shape)
    else:
        values = numbers(x).copy()
        flat = values.reshape(-1)
        subnormal = float(_finfo(x).smallest_normal) / 2
        special = np.array([np.nan, np.inf, -np.inf, -0.0, subnormal, -subnormal])
        count = min(flat.size, max(1, min(12, flat.size // 64)))
        places = draw.choice(flat.size, count, replace=False)
        flat[places] = special[draw.permutation(count) % len(special)]
    assign(x, values)


def assign(x: Any, values: np.ndarray) -> None:
    """Write numbers into an array in place."""
    if is_torch(x):
        x.copy_(_torch().from_numpy(np.ascontiguousarray(values)).to(x.device))  # the conversion runs on the device
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            x[...] = values.astype(x.dtype)


# Layouts, between guard bytes


class Zone:
    """An array in its own buffer, all other bytes of which are known."""

    def __init__(self, like: Any, shape: Sequence[int], strides: Sequence[int], shift: int = 0) -> None:
        """Create a zone; elements are `strides` apart, the first is `shift` elements after an aligned address."""
        self.shape: tuple[int, ...] = tuple(shape)
        self.strides: tuple[int, ...] = tuple(strides)
        size = like.element_size() if is_torch(like) else like.itemsize
        span = size * (shift + 1 + sum((n - 1) * step for n, step in zip(shape, strides) if n))
        total = -(-(2 * _ZONE + _ALIGNMENT + span) // size) * size
        self._like = like
        self._size = size
        self._bytes: Any
        if is_torch(like):
            self._bytes = _torch().full((total,), _PATTERN, dtype=_torch().uint8, device=like.device)
            address = self._bytes.data_ptr()
        else:
            self._bytes = np.full(total, _PATTERN, np.uint8)
            address = self._bytes.ctypes.data
        self._begin = _ZONE + -address % _ALIGNMENT + shift * size
        self.array: Any = self._view(self._bytes)
        self._before = self._copy()

    def _copy(self) -> Any:
        return self._bytes.clone() if is_torch(self._like) else self._bytes.copy()

    def _view(self, memory: Any) -> Any:
        """Return the array's place in a buffer."""
        if not is_torch(self._like):
            steps = [step * self._size for step in self.strides]
            return np.ndarray(self.shape, self._like.dtype, memory.data, self._begin, steps)
        elements = memory.view(self._like.dtype)
        return elements.as_strided(self.shape, self.strides, elements.storage_offset() + self._begin // self._size)

    def remember(self) -> None:
        """Take the present contents of the array as its contents."""
        self._before = self._copy()

    def unchanged(self) -> bool:
        """Return whether the array holds what was remembered."""
        return self._same(self._bytes, self._before)

    def spilled(self) -> bool:
        """Return whether bytes around the array, or between its elements, have changed."""
        allowed = self._before.clone() if is_torch(self._like) else self._before.copy()
        if is_torch(self._like):
            self._view(allowed).copy_(self.array)
        else:
            self._view(allowed)[...] = self.array
        return not self._same(self._bytes, allowed)

    def _same(self, one: Any, other: Any) -> bool:
        return _torch().equal(one, other) if is_torch(self._like) else np.array_equal(one, other)


def placed(x: Any, layout: str = "") -> Zone | None:
    """Copy an input into a zone, in a layout of `LAYOUTS`; None if it cannot be laid out so."""
    if not _is_plain(x):
        return None
    size = x.element_size() if is_torch(x) else x.itemsize
    strides = list(x.stride()) if is_torch(x) else [step // size for step in x.strides]
    shape = list(x.shape)
    shift = 0
    if len(shape) < {"transposed": 2, "rows apart": 1}.get(layout, 0):
        return None
    if layout == "transposed":
        order = sorted(range(len(shape)), key=lambda mode: strides[mode])
        row = order.index(len(shape) - 2)
        column = order.index(len(shape) - 1)
        order[row], order[column] = order[column], order[row]
        strides = _packed(shape, order)
    elif layout == "rows apart":
        row = max(0, len(shape) - 2)
        strides = _packed([2 * n if mode == row else n for mode, n in enumerate(shape)], [*reversed(range(len(shape)))])
        strides[row] *= 2
    elif layout == "shifted":
        shift = 1
    if not _disjoint(shape, strides):
        return None
    zone = Zone(x, shape, strides, shift)
    if is_torch(x):
        zone.array.copy_(x.detach())
    else:
        zone.array[...] = x
    zone.remember()
    return zone


def _is_plain(x: Any) -> bool:
    """Return whether an array is elements at strides."""
    if is_torch(x):
        return x.layout is _torch().strided and not x.dtype.is_complex
    return isinstance(x, np.ndarray) and x.dtype != object


def _packed(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return the strides of a compact array; `order` lists the modes from the contiguous one on."""
    strides = [0] * len(shape)
    step = 1
    for mode in order:
        strides[mode] = step
        step *= max(1, shape[mode])
    return strides


def _disjoint(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether no two elements share memory."""
    reach = 0
    for step, extent in sorted((step, extent) for step, extent in zip(strides, shape) if extent > 1):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True


# Memory that kernel_fn allocates


@contextlib.contextmanager
def poisoned_memory() -> Iterator[list[Zone]]:
    """While open, fill what torch and numpy allocate as empty with NaN, in zones, which are collected in a list."""
    zones: list[Zone] = []

    def poisoned(array: Any) -> Any:
        strides = array.stride() if is_torch(array) else [step // array.itemsize for step in array.strides]
        if not _disjoint(array.shape, strides) or 0 in array.shape:
            return array
        zone = Zone(array, array.shape, strides)
        _poison(zone.array)
        zone.remember()
        zones.append(zone)
        return zone.array

    plain = {name: getattr(np, name) for name in ("empty", "empty_like")}
    with contextlib.ExitStack() as stack:
        torch = _torch()
        if torch is not None:
            stack.enter_context(_poisoning(torch, poisoned))
        try:
            for name, function in plain.items():
                setattr(np, name, lambda *args, _f=function, **options: poisoned(_f(*args, **options)))
            yield zones
        finally:
            for name, function in plain.items():
                setattr(np, name, function)


def _poisoning(torch: Any, poisoned: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    # By name, which `torch.empty` keeps under other modes.
    names = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}

    class Poison(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            plain = type(result) is torch.Tensor and getattr(func, "__name__", "") in names
            return (
                poisoned(result) if plain and result.layout is torch.strided and not result.dtype.is_complex else result
            )

    return Poison()


def _poison(x: Any) -> None:
    """Fill an array with NaN, or an unlikely integer. Types that can hold neither stay as they are."""
    value = float("nan") if is_floating(x) else 85
    with contextlib.suppress(RuntimeError, NotImplementedError):
        x.fill_(value) if is_torch(x) else x.fill(value)
