"""Values that Python objects keep from one trace to another."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute


class Keeper:
    """Keeps what is put into it."""


LEFT = Keeper()


@cute.jit
def leave(n: Int32, t: cute.Tensor):
    LEFT.number, LEFT.argument = n + 1, n
    LEFT.tensor, LEFT.pointer = t, t.iterator + 1
    LEFT.vector = cute.local_tile(t, (2,), (0,)).load()
    LEFT.layout = cute.make_layout((n, 4))
    LEFT.condition = n > 2


@cute.jit
def by_condition(out: cute.Tensor):
    return 1 if LEFT.condition else 2


@cute.jit
def by_range(out: cute.Tensor):
    total = Int32(0)
    for i in range(LEFT.number):
        total += i
    return total


USES = {
    "number": lambda out: LEFT.number + 1,
    "argument": lambda out: LEFT.argument,
    "tensor": lambda out: LEFT.tensor[0],
    "pointer": lambda out: LEFT.pointer.load(),
    "vector": lambda out: LEFT.vector[0],
    "layout": lambda out: cute.size(LEFT.layout) * 2,
    "condition": by_condition,
    "range": by_range,
}


@pytest.mark.parametrize("what", USES)
def test_a_value_that_another_trace_left_behind(what: str) -> None:
    use = USES[what]

    @cute.jit
    def f(out: cute.Tensor):
        out[0] = use(out)

    leave(3, np.zeros(4, np.int32))
    assert str(LEFT.number) == "?" and str(LEFT.layout) == "(?,4):(1,?)"  # they can still be looked at
    with pytest.raises(kiln.DSLBaseError, match="computed while another function was traced"):
        f(np.zeros(1, np.int32))


def test_objects_may_keep_values_that_nobody_uses_again() -> None:
    class Program:
        @cute.jit
        def __call__(self, t: cute.Tensor, n: Int32):
            self.count, self.tile = n * 2, cute.local_tile(t, (2,), (1,))
            self.finish()

        @cute.jit
        def finish(self):
            self.tile[0] = self.count

    program = Program()
    for n in (3, 4):
        x = np.zeros(4, np.int32)
        program(x, n)
        assert x.tolist() == [0, 0, 2 * n, 0]


@pytest.mark.parametrize(
    "use",
    ["n + 1", "1 - n", "-n", "~n", "abs(n)", "n == 1", "n // 2", "n << 1", "n ** 2", "n.to(kiln.Float32)", "max(n, 3)",
     "x * x", "round(x)", "cute.math.exp(x)", "bool(n)", "[1, 2][n]", "v + 1", "v[0]", "t[0]", "p.load()", "cute.size(l) * 2"],
)  # fmt: skip
def test_a_value_that_is_used_after_its_trace(use: str) -> None:
    kept = {}

    @cute.jit
    def leaves(n: Int32, t: cute.Tensor):
        kept.update(n=n, x=n.to(kiln.Float32), t=t, p=t.iterator, v=cute.local_tile(t, (2,), (0,)).load())
        kept.update(l=cute.make_layout((n, 4)))

    leaves(3, np.zeros(4, np.int32))
    with pytest.raises(kiln.DSLBaseError, match="computed while another function was traced"):
        eval(use, {"kiln": kiln, "cute": cute, **kept})
