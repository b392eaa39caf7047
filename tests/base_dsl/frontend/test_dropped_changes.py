"""A branch of a kernel may give an object what cannot be merged, if nothing reads the object afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import kiln.cute as cute
from kiln import Constexpr, Int32
from kiln.base_dsl.diagnostics import DSLUserCodeError, DSLUserCodeTypeError


class Partition:
    """A part of a tensor that is made where it is needed."""

    def __init__(self):
        self.part = None

    @cute.jit
    def setup(self, x):
        self.part = cute.make_tensor(x.iterator, cute.make_layout(2))
        self.offset = Int32(7)

    def get(self):
        return self.part[0] + self.offset  # type: ignore[index]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.left = self.part is None


def with_one(partition, number):
    return number if partition.part is None else number + 1


class Kernels:
    def __init__(self):
        self.partition = Partition()

    @cute.jit
    def __call__(self, x: cute.Tensor, name: Constexpr):
        getattr(self, name)(x).launch(grid=[1, 1, 1], block=[2, 1, 1])

    @cute.kernel
    def last_statement(self, x: cute.Tensor):
        if cute.arch.thread_idx()[0] == 0:
            self.partition.setup(x)
            x[1] = self.partition.get()

    @cute.kernel
    def both_branches(self, x: cute.Tensor):
        if cute.arch.thread_idx()[0] == 0:
            x[1] = 3
        else:
            self.partition.setup(x)
            x[2] = self.partition.get()

    @cute.kernel
    def of_another_object(self, x: cute.Tensor):
        other = Partition()
        if cute.arch.thread_idx()[0] == 0:
            self.partition.setup(x)
            x[1] = self.partition.get()
        other.setup(x)
        if cute.arch.thread_idx()[0] == 0:
            x[2] = other.get()

    @cute.kernel
    def read_later(self, x: cute.Tensor):
        if cute.arch.thread_idx()[0] == 0:
            self.partition.setup(x)
        x[2] = self.partition.get()

    @cute.kernel
    def read_by_a_bound_method(self, x: cute.Tensor):
        get = self.partition.get
        if cute.arch.thread_idx()[0] == 0:
            self.partition.setup(x)
        x[2] = get()

    @cute.kernel
    def read_by_a_closure(self, x: cute.Tensor):
        partition = self.partition

        def read():
            return partition.part[0]  # type: ignore[index]

        if cute.arch.thread_idx()[0] == 0:
            partition.setup(x)
        x[2] = read()

    @cute.kernel
    def in_each_iteration(self, x: cute.Tensor):
        for i in range(2):
            if cute.arch.thread_idx()[0] == i:
                self.partition.setup(x)
                x[1 + i] = self.partition.get()

    @cute.kernel
    def read_by_the_next_iteration(self, x: cute.Tensor):
        for i in range(x[0]):
            x[2] = with_one(self.partition, i)
            if cute.arch.thread_idx()[0] == i:
                self.partition.setup(x)

    @cute.kernel
    def read_in_the_same_expression(self, x: cute.Tensor):
        x[2] = with_one(self.partition, self.changed(x))

    @cute.kernel
    def read_at_the_end_of_a_with(self, x: cute.Tensor):
        with Partition() as partition:
            if cute.arch.thread_idx()[0] == 0:
                partition.setup(x)

    @cute.jit
    def changed(self, x):
        if cute.arch.thread_idx()[0] == 0:
            self.partition.setup(x)
        return 1

    @cute.jit
    def on_the_host(self, x: cute.Tensor):
        if x[0] == 5:
            self.partition.setup(x)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("last_statement", (12, 0)),
        ("both_branches", (3, 12)),
        ("of_another_object", (12, 12)),
        ("in_each_iteration", (12, 12)),
    ],
)
def test_changes_that_nothing_reads(name, written):
    kernels, x = Kernels(), np.array([5, 0, 0, 0], np.int32)
    kernels(x, name)
    assert x.tolist() == [5, *written, 0]
    assert vars(kernels.partition) == {"part": None}
    kernels(x, name)


@pytest.mark.parametrize("name", [name for name in vars(Kernels) if name.startswith("read_")])
def test_changes_that_something_may_read(name):
    with pytest.raises((DSLUserCodeTypeError, DSLUserCodeError), match="part first gets its value inside the `if`"):
        Kernels()(np.array([5, 0, 0, 0], np.int32), name)


class Variant:
    """What a kernel is made of, with places for tensors that its loops fill."""

    params = None
    """Of the class, until an object has its own."""

    def __init__(self):
        self.scale = None

    def score(self, i):
        return self.params[0] * i + self.scale[0]  # type: ignore[index]


class VariantKernels:
    def __init__(self):
        self.variant = Variant()

    @cute.jit
    def __call__(self, x: cute.Tensor, name: Constexpr):
        getattr(self, name)(x).launch(grid=[1, 1, 1], block=[1, 1, 1])

    @cute.jit
    def bind(self, x: cute.Tensor):
        self.variant.params = x
        self.variant.scale = cute.make_tensor(x.iterator + 1, cute.make_layout(1))

    @cute.kernel
    def in_loops(self, x: cute.Tensor):
        n = x[0]
        while n > 0:
            if n > 1:
                for i in range(n):
                    self.bind(x)
                    x[2] += self.variant.score(i)
                self.bind(x)
            n -= 1
        for i in range(x[0]):
            self.bind(x)
            x[3] += self.variant.score(i)
        self.bind(x)
        x[3] += self.variant.score(0)

    @cute.kernel
    def read_after(self, x: cute.Tensor):
        for _ in range(x[0]):
            self.bind(x)
        x[2] = self.variant.score(1)

    @cute.kernel
    def asked_after(self, x: cute.Tensor):
        for _ in range(x[0]):
            self.bind(x)
        x[2] = 1 if getattr(self.variant, "params", None) is None else 2

    @cute.kernel
    def asked_before(self, x: cute.Tensor):
        for i in range(x[0]):
            x[2] = 1 if self.variant.params is None else 2
            self.bind(x)


def test_loops_fill_attributes_that_were_none():
    other = Variant()
    for _ in range(2):
        x = np.array([3, 7, 0, 0], np.int32)
        VariantKernels()(x, "in_loops")
        assert x.tolist() == [3, 7, 9 + 3 * 7 + 3 + 2 * 7, 9 + 3 * 7 + 7]
        assert vars(Variant)["params"] is None
        assert other.params is None


@pytest.mark.parametrize("name", ["read_after", "asked_after", "asked_before"])
def test_attributes_that_may_still_be_none_are_not_read(name):
    kernels = VariantKernels()
    with pytest.raises(DSLUserCodeError, match=r"self\.variant\.\w+ first gets its value inside"):
        kernels(np.array([3, 0, 0, 0], np.int32), name)
    assert vars(Variant)["params"] is None
    assert vars(kernels.variant) == {"scale": None}


def test_changes_that_python_may_read_after_the_call():
    with pytest.raises(DSLUserCodeTypeError, match="part' with different types"):
        Kernels().on_the_host(np.array([5, 0, 0, 0], np.int32))


class Slices:
    """An object whose methods keep what they made for each other, as kernels in classes do."""

    def cut(self, x, i):
        self.part = {"x": cute.make_tensor(x.iterator + i, cute.make_layout(1))}

    def add(self, n):
        self.part["x"][0] += n


def counted(slices, i):
    seen = getattr(slices, "part", None)
    return i if seen is None else i + 1


class GainingKernels:
    def __init__(self):
        self.slices = Slices()

    @cute.jit
    def __call__(self, x: cute.Tensor, name: Constexpr):
        getattr(self, name)(x).launch(grid=[1, 1, 1], block=[1, 1, 1])

    @cute.kernel
    def in_a_loop(self, x: cute.Tensor):
        i = Int32(0)
        while i < x[0]:
            self.slices.cut(x, i)
            for _ in range(2):
                self.slices.add(1)
            i += 1
        if x[0] > 100:
            self.slices.cut(x, 1)
            self.slices.add(3)

    @cute.kernel
    def in_a_branch(self, x: cute.Tensor):
        for i in range(x[0]):
            if i < 3:
                self.slices.cut(x, i)
                self.slices.add(2)
        self.slices.cut(x, 3)
        self.slices.add(10)

    @cute.kernel
    def read_after_the_loop(self, x: cute.Tensor):
        for i in range(x[0]):
            self.slices.cut(x, i)
        self.slices.add(3)

    @cute.kernel
    def read_after_the_branch(self, x: cute.Tensor):
        if x[0] > 1:
            self.slices.cut(x, 0)
        self.slices.add(3)

    @cute.kernel
    def asked_for_after_the_loop(self, x: cute.Tensor):
        for i in range(x[0]):
            self.slices.cut(x, i)
        x[1] = 1 if hasattr(self.slices, "part") else 2

    @cute.kernel
    def asked_for_before_it_is_set(self, x: cute.Tensor):
        for i in range(x[0]):
            x[1] = counted(self.slices, i)
            self.slices.cut(x, i)

    @cute.kernel
    def asked_for_before_a_branch_of_the_loop(self, x: cute.Tensor):
        for i in range(x[0]):
            x[1] = counted(self.slices, i)
            if i > 1:
                self.slices.cut(x, i)

    @cute.kernel
    def caught(self, x: cute.Tensor):
        for i in range(x[0]):
            try:
                self.slices.add(1)
            except Exception:
                self.slices.cut(x, i)


@pytest.mark.parametrize(("name", "written"), [("in_a_loop", [5, 2, 2, 2]), ("in_a_branch", [5, 2, 2, 10])])
def test_attributes_that_a_region_sets_before_it_reads_them(name, written):
    for _ in range(2):
        x = np.array([3, 0, 0, 0], np.int32)
        GainingKernels()(x, name)
        assert x.tolist() == written
        assert not hasattr(Slices, "part")


@pytest.mark.parametrize(
    "name", [name for name in vars(GainingKernels) if name.startswith(("read_", "asked_", "caught"))]
)
def test_attributes_that_may_be_read_before_a_region_sets_them(name):
    with pytest.raises(DSLUserCodeError, match=r"self\.slices\.part first gets its value inside"):
        GainingKernels()(np.array([3, 0, 0, 0], np.int32), name)
    assert not hasattr(Slices, "part")


@cute.jit
def cut(parts: SimpleNamespace, x: cute.Tensor, i):
    parts.part = x[i] + i


@cute.kernel
def parts_of_a_branch(x: cute.Tensor, ask: Constexpr):
    parts = SimpleNamespace(all=x)
    for i in range(x[0]):
        if ask == "before":
            x[1] = 1 if hasattr(parts, "part") else 2
        if x[0] > 1:
            cut(parts, x, i)
            x[2] = parts.part + x[2]
        if ask == "after":
            x[1] = getattr(parts, "part", 7)
        if ask == "read":
            x[1] = parts.part


@cute.jit
def launch_parts(x: cute.Tensor, ask: Constexpr):
    parts_of_a_branch(x, ask).launch(grid=1, block=1)


def test_namespaces_gain_attributes_too():
    x = np.array([3, 5, 0, 0], np.int32)
    launch_parts(x, "")
    assert x.tolist() == [3, 5, 3 + 6 + 11, 0]
    for ask in ("before", "after"):
        with pytest.raises(DSLUserCodeError, match="parts.part first gets its value inside"):
            launch_parts(x, ask)
    with pytest.raises(AttributeError, match="no attribute 'part'"):
        launch_parts(x, "read")


def test_an_error_in_a_branch_is_told_beside_generic_aliases():
    @cute.jit
    def failing(x: cute.Tensor):
        kinds = SimpleNamespace(table=dict[int, float])
        if x[0] == 5:
            x[1] = kinds.missing

    with pytest.raises(AttributeError, match="missing"):
        failing(np.array([5, 0], np.int32))
