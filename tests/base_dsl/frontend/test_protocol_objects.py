"""Objects of the user's classes with the value protocols, which hold tensors: as arguments, in branches and in loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, cute
from kiln.base_dsl.typing import get_c_pointers, get_mlir_types
from kiln.cute.runtime import from_dlpack, make_fake_tensor, sym_int, sym_int64


class Record:
    """Fields that are no plain Python values are passed on; `_counts` says how many values each was made of."""

    def _dynamic(self):
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in found.items() if not isinstance(v, (bool, int, str, type(None)))}

    def __extract_mlir_values__(self):
        parts = [kiln.extract_mlir_values(v) for v in self._dynamic().values()]
        self._counts = [len(p) for p in parts]
        return [v for p in parts for v in p]

    def __new_from_mlir_values__(self, values):
        made, rest = {}, list(values)
        for (name, v), count in zip(self._dynamic().items(), self._counts, strict=True):
            made[name] = kiln.new_from_mlir_values(v, rest[:count])
            rest = rest[count:]
        return dataclasses.replace(self, **made)


@dataclasses.dataclass
class Table(Record):
    numbers: cute.Tensor
    used: Int32
    name: str = "table"

    @cute.jit
    def at(self, i: Int32):
        found = Int32(-1)
        if i < self.used:
            found = self.numbers[i]
        return found

    @cute.jit
    def first_above(self, limit: Int32):
        i = Int32(0)
        total = self.at(i)
        while total <= limit:
            i += 1
            if i >= self.used:
                total = limit + 1
            else:
                total += self.at(i)
        return i

    @cute.jit
    def fold(self, n: Int32):
        total = Int32(0)
        for i in range(n):
            if i % 2 == 0:
                total += self.at(i)
                self.used += 1
        return total


@dataclasses.dataclass
class Job(Record):
    weight: Int32
    table: Table


@dataclasses.dataclass
class Recounting(Record):
    """Its values are counted again when it is rebuilt, from parts that belong to another function by then."""

    numbers: cute.Tensor
    weight: Int32

    def __new_from_mlir_values__(self, values):
        count = len(kiln.extract_mlir_values(self.numbers))
        return Recounting(
            kiln.new_from_mlir_values(self.numbers, values[:count]),
            kiln.new_from_mlir_values(self.weight, values[count:]),
        )


NUMBERS = np.arange(10, 18, dtype=np.int32)


def tensors():
    return [from_dlpack(NUMBERS), from_dlpack(NUMBERS).mark_layout_dynamic()]


@pytest.mark.parametrize("x", tensors(), ids=["static", "dynamic"])
def test_as_arguments_of_kernels(x):
    @cute.kernel
    def flat(table, again, y: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        y[t] = table.numbers[t] + table.used + again.numbers[t] * again.weight

    @cute.kernel
    def nested(job, y: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        y[t] = job.table.numbers[t] * job.weight

    @cute.jit
    def main(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: Int32):
        moved = cute.make_tensor(x.iterator + 1, cute.make_layout(4))
        flat(Table(x, n), Recounting(moved, n), y).launch(grid=1, block=4)
        nested(Job(n, Table(x, n)), z).launch(grid=1, block=4)

    y, z = np.zeros(4, np.int32), np.zeros(4, np.int32)
    main(x, y, z, 3)
    np.testing.assert_array_equal(y, NUMBERS[:4] + 3 + 3 * NUMBERS[1:5])
    np.testing.assert_array_equal(z, NUMBERS[:4] * 3)


@pytest.mark.parametrize("x", tensors(), ids=["static", "dynamic"])
def test_from_python_taken_for_their_fields(x):
    @cute.jit
    def main(job, y: cute.Tensor):
        y[0] = job.table.numbers[2] + job.weight

    y = np.zeros(1, np.int32)
    main(Job(5, Table(x, 3)), y)
    assert y[0] == NUMBERS[2] + 5


@pytest.mark.parametrize("x", tensors(), ids=["static", "dynamic"])
def test_in_dynamic_loops_and_branches_of_their_own_methods(x):
    @cute.kernel
    def kernel(x: cute.Tensor, n: Int32, y: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        table = Table(x, n)
        if t < 3:
            y[t] = table.first_above(Int32(10) * t)
        else:
            y[t] = table.fold(n + 2)
            y[t + 1] = table.used

    @cute.jit
    def main(x: cute.Tensor, y: cute.Tensor, n: Int32):
        kernel(x, n, y).launch(grid=1, block=4)

    y = np.zeros(5, np.int32)
    main(x, y, 3)
    # sums of NUMBERS: 10, 21, 33; the limits are 0, 10, 20. `fold` makes 3 elements 4, 5 and 6.
    np.testing.assert_array_equal(y, [0, 1, 1, 10 + 12 + 14, 6])


def test_a_tensor_in_an_object_is_not_carried_through_a_loop_that_leaves_it_alone():
    @cute.jit
    def main(x: cute.Tensor, n: Int32):
        return Table(x, n).first_above(n)

    compiled = cute.compile(main, tensors()[0], 3)
    (loop,) = [line for line in compiled.__mlir__.splitlines() if "scf.while" in line]
    assert "memref" not in loop
    assert compiled(tensors()[0], 12) == 1


class Slotted:
    """The same, with slots in place of a dictionary."""

    __slots__ = ("place", "numbers")

    def __init__(self, place, numbers):
        self.place, self.numbers = place, numbers

    def __extract_mlir_values__(self):
        return kiln.extract_mlir_values(self.place) + kiln.extract_mlir_values(self.numbers)

    def __new_from_mlir_values__(self, values):
        place = kiln.new_from_mlir_values(self.place, values[:1])
        return Slotted(place, kiln.new_from_mlir_values(self.numbers, values[1:]))

    def step(self):
        self.place += 2


def test_objects_with_slots_are_carried():
    @cute.jit
    def main(x: cute.Tensor, n: Int32):
        found = Slotted(Int32(0), x)
        for _ in range(n):
            found.step()
        if n > 1:
            found.step()
        return found.numbers[found.place]

    assert [main(tensors()[1], n) for n in (1, 2)] == [NUMBERS[2], NUMBERS[6]]


class Settings:
    """A plain object that refers to itself."""

    def __init__(self):
        self.own, self.width = [self], 4


@dataclasses.dataclass
class Cursor(Record):
    place: Int32

    def __new_from_mlir_values__(self, values):
        made = Cursor(kiln.new_from_mlir_values(self.place, values))
        made.shared = self.shared
        return made

    def __extract_mlir_values__(self):
        return kiln.extract_mlir_values(self.place)

    def step(self):
        self.place += self.shared.width


def test_what_an_object_refers_to_stays_the_same_object():
    @cute.jit
    def main(n: Int32, settings: kiln.Constexpr):
        cursor = Cursor(Int32(0))
        cursor.shared = settings
        for i in range(n):
            if i % 2 == 0:
                cursor.step()
        assert cursor.shared is settings
        return cursor.place

    assert main(5, Settings()) == 12


def test_a_tensor_chosen_by_a_branch_inside_an_object():
    @cute.jit
    def main(x: cute.Tensor, z: cute.Tensor, n: Int32):
        table = Table(x, n)
        if n > 2:
            table = Table(z, n + 1)
        return table.numbers[1] + table.used

    z = np.arange(8, dtype=np.int32)
    assert main(from_dlpack(NUMBERS), from_dlpack(z), 1) == NUMBERS[1] + 1
    assert main(from_dlpack(NUMBERS), from_dlpack(z), 3) == 1 + 4


class Scaled:
    """An argument of the user's own that hands its parts' protocol on."""

    def __init__(self, *parts):
        self.parts = parts

    def __get_mlir_types__(self):
        return [t for p in self.parts for t in get_mlir_types(p)]

    def __c_pointers__(self):
        return [c for p in self.parts for c in get_c_pointers(p)]

    def __extract_mlir_values__(self):
        return [v for p in self.parts for v in kiln.extract_mlir_values(p)]

    def __new_from_mlir_values__(self, values):
        made, rest = [], list(values)
        for p in self.parts:
            count = len(get_mlir_types(p))
            made.append(kiln.new_from_mlir_values(p, rest[:count]))
            rest = rest[count:]
        assert not rest
        return Scaled(*made)


@cute.kernel
def scale_kernel(p: Scaled, y: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    x, z, factor = p.parts
    y[t] = x[t] + z[t] * factor


@cute.jit
def scale(p: Scaled, y: cute.Tensor):
    scale_kernel(p, y).launch(grid=1, block=4)


def test_tensors_of_python_have_the_protocol_of_arguments():
    m, z, y = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones(4, np.float32), np.zeros(4, np.float32)
    expected = {}
    for name, part in {"row": m[0], "column": m[:, 0], "short": m[0, :3]}.items():
        scale(Scaled(from_dlpack(part), from_dlpack(z), Float32(2.0)), y)
        expected[name] = y.copy()
    np.testing.assert_array_equal(expected["row"], [2, 3, 4, 5])
    np.testing.assert_array_equal(expected["column"], [2, 6, 10, 14])  # another layout is other code
    for part in (m, m[:, :3]):  # and another extent is not where it is dynamic
        x = from_dlpack(part).mark_layout_dynamic()
        scale(Scaled(x, from_dlpack(z).mark_layout_dynamic(), Float32(3.0)), y)
        np.testing.assert_array_equal(y, [3, 7, 11, 15])


def test_a_tensor_may_be_there_twice():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    tensor = from_dlpack(x).mark_layout_dynamic()
    assert get_c_pointers(tensor) == get_c_pointers(tensor)
    scale(Scaled(tensor, tensor, Float32(2.0)), y)
    np.testing.assert_array_equal(y, x * 3)


def test_fake_tensors_have_it_too_but_no_memory():
    z, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    fake = make_fake_tensor(Float32, (sym_int(),), (sym_int64(),), memspace=cute.AddressSpace.generic)
    assert len(get_mlir_types(fake)) == len(get_c_pointers(fake)) == 1
    given = Scaled(fake, from_dlpack(z), Float32(1.0))
    compiled = cute.compile(scale, given, y)
    with pytest.raises(TypeError, match="null address"):
        compiled(given, y)
