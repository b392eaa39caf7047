"""Implementations of a user's own: who is chosen, and why others are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int64, cute, kernels
from kiln.kernels.dispatch import launches
from kiln.kernels.dispatch.registry import Registry, variants
from kiln.kernels.impl.gemm import REGISTRY
from kiln.testing import dry_run

X = np.arange(16, dtype=np.float16).reshape(4, 4) / 8
MINE = np.float16(7)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@dataclasses.dataclass(frozen=True)
class Sevens:
    times: int = 1


class Filling:
    """A kernel that writes sevens."""

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, stream: Int64):
        self.kernel(d).launch(grid=(1, 1, 1), block=(16, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, d: cute.Tensor):
        thread = cute.arch.thread_idx()[0]
        d[0, thread // 4, thread % 4] = cute.Float16(7)


class Mine(kernels.Implementation):
    config = Sevens
    runs = 0

    def supports(self, problem, device):
        return None if problem.shape == (1, 4, 4) else "it is for 4 x 4"

    def configs(self, problem, device):
        return [Sevens(), Sevens(2)]

    def cost(self, problem, config, device):
        return 0.0

    def check(self, problem, config, device):
        kernels_require(config.times > 0, f"{config}: at least once")

    def run(self, problem, config, given):
        type(self).runs += 1
        for _ in range(config.times):
            tensors = [kiln.cute.runtime.from_dlpack(x) for x in (given.a, given.b, given.out)]
            launches.run_tensors(FILLING, [given.a, given.b, given.out], tensors, 3)


class Recorded(Mine):
    repeats = True


FILLING = Filling()


def kernels_require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


@pytest.fixture(params=[Mine, Recorded])
def mine(request):
    REGISTRY.register(request.param)
    request.param.runs = 0
    yield request.param
    REGISTRY.unregister(request.param)


def test_the_cheapest_is_chosen_and_recorded_calls_choose_again(mine):
    REGISTRY.unregister(mine)
    for _ in range(3):
        np.testing.assert_array_equal(kernels.gemm(X, X), X @ X)
    REGISTRY.register(mine)
    for _ in range(3):
        assert (kernels.gemm(X, X) == MINE).all()
    assert mine.runs == (1 if mine.repeats else 3)  # one that launches by itself is run by Python each time
    REGISTRY.unregister(mine)
    np.testing.assert_array_equal(kernels.gemm(X, X), X @ X)


def test_what_it_does_not_support_goes_to_others(mine):
    assert (kernels.gemm(X[:3], X) == X[:3] @ X).all()
    with pytest.raises(kiln.DSLUserCodeTypeError, match="it is for 4 x 4"):
        kernels.gemm(X[:3], X, config=Sevens())


def test_a_config_says_who_computes(mine):
    np.testing.assert_array_equal(kernels.gemm(X, X, config=kernels.Sm80GemmConfig((16, 32, 32), (1, 2), 2)), X @ X)
    assert (kernels.gemm(X, X, config=Sevens(2)) == MINE).all()
    with pytest.raises(TypeError, match="at least once"):
        kernels.gemm(X, X, config=Sevens(0))


def test_configs_of_nobody_are_refused():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="config is Sevens") as refused:
        kernels.gemm(X, X, config=Sevens())
    assert "kernels.Sm80GemmConfig" in str(refused.value)


def test_configs_are_frozen():
    @dataclasses.dataclass
    class Loose:
        pass

    class Wrong(Mine):
        config = Loose

    with pytest.raises(kiln.DSLUserCodeTypeError, match="frozen"):
        REGISTRY.register(Wrong)


@dataclasses.dataclass(frozen=True)
class Nothing:
    name = "nothing"


def test_an_empty_family_says_so_and_ties_go_to_the_last():
    family = Registry("empty")
    with pytest.raises(kiln.DSLUserCodeTypeError, match="nothing: no implementation computes this: there is none"):
        family.choose(Nothing(), None)  # type: ignore[arg-type]

    class Any4(Mine):
        def supports(self, problem, device):
            return None

    first, second = Any4(), Any4()
    family.register(first)
    family.register(second)
    assert family.choose(Nothing(), None).implementation is second  # type: ignore[arg-type]
    assert [choice.config for choice in family.choices(Nothing(), None)] == [Sevens(), Sevens(2)] * 2  # type: ignore[arg-type]


def test_configs_with_other_fields():
    def check(config: Sevens) -> None:
        if config.times % 2:
            raise kiln.DSLUserCodeTypeError("odd")

    assert list(variants(Sevens(1), check, times=(1, 2, 3, 4))) == [Sevens(1), Sevens(2), Sevens(4)]


def test_calls_are_explained():
    """What is taken, what else there is, and who cannot; nothing is computed."""
    a, out = np.zeros((256, 256), np.float16), np.full((256, 256), 3, np.float16)
    found = kernels.explain(kernels.gemm, a, a.T, out=out)
    assert (out == 3).all()
    assert found.config == found.choices[0].config
    assert found.choices[0].cost <= min(choice.cost for choice in found.choices[1:])
    text = str(found)
    assert "expected to take" in text
    assert "SimtGemm cannot: it multiplies Float32" in text
    given = kernels.explain(kernels.gemm, a, a.T, config=kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 4))
    assert given.config == kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 4)
    large = np.zeros((8192, 8192), np.float16)
    assert "bound by memory: " in str(kernels.explain(kernels.gemm, large[:1], large.T))
    assert "bound by tensor cores: " in str(kernels.explain(kernels.gemm, large, large.T))
    assert kernels.explain(kernels.softmax, a).choices
    with pytest.raises(TypeError, match="no function of the library"):
        kernels.explain(np.dot, a, a)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="nothing to compute"):
        kernels.explain(kernels.gemm, a[:0], a)


def test_a_refusal_names_functions_that_are_part_of_a_problem():
    x, config = np.zeros((256, 256), np.float16), kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 6, 8, True)
    with dry_run("sm_80"), pytest.raises(kiln.DSLUserCodeTypeError, match="no implementation computes") as refused:
        kernels.gemm(x, x.T, activation="gelu", epilogue=lambda value: value * 2.0, config=config)
    assert "Functions(_gelu, " in refused.value.hint
    assert " at 0x" not in refused.value.hint
