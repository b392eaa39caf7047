"""Problems of rows, reductions, losses and element-wise functions: what they refuse, what they count, which configs there are."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
from kiln import kernels
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl import cross_entropy, elementwise, reduction, rowwise
from kiln.kernels.impl.rowwise.backward import LayerNormBackward
from kiln.kernels.impl.rowwise.config import UnalignedRowwiseConfig
from kiln.kernels.impl.rowwise.default_configs import norm_backward_config, softmax_config
from kiln.kernels.impl.rowwise.softmax_and_norms import Softmax
from kiln.kernels.parts.element_functions import Functions

F16, F32 = kiln.Float16, kiln.Float32
H200 = device_of("sm_90a")


def softmax(*shape: int, dtype: Any = F16, out: Any = None) -> rowwise.RowFunctionProblem:
    x = TensorLayout.dense(dtype, *shape)
    return rowwise.RowFunctionProblem("softmax", Softmax, (x,), (out or x,), (), softmax_config)


def test_which_rows_are_held_streamed_or_between_edges():
    def config(*shape: int) -> Any:
        return rowwise.REGISTRY.choose(softmax(*shape), H200).config

    assert type(config(64, 4096)) is kernels.RowwiseConfig
    assert type(config(64, 262144)) is kernels.StreamingRowwiseConfig
    assert type(config(64, 4097)) is UnalignedRowwiseConfig
    assert type(config(64, 33)) is kernels.RowwiseConfig  # too short for edges


def test_gradients_with_sums_are_streamed_or_read_twice():
    def config(n: int) -> Any:
        x = TensorLayout.dense(F16, 64, n)
        problem = rowwise.RowFunctionProblem(
            "", LayerNormBackward, (x, x), (x,), (TensorLayout.dense(F16, n),), norm_backward_config, (F16, F16)
        )
        assert problem.bytes == 3 * x.bytes + 3 * 2 * n
        return rowwise.REGISTRY.choose(problem, H200).config

    assert type(config(4096)) is type(config(4097)) is kernels.StreamingRowwiseConfig
    assert type(config(33)) is kernels.RowwiseConfig  # too short for edges


@pytest.mark.parametrize(
    ("family", "problem", "flops", "size"),
    [
        (rowwise.REGISTRY, softmax(64, 4096), 10 * 64 * 4096, 2 * 64 * 4096 * 2),
        (
            reduction.REGISTRY,
            reduction.ReductionProblem("sum", TensorLayout.dense(F32, 64, 1000), (1,), F32),
            64000,
            4 * 64000 + 4 * 64,
        ),
        (
            cross_entropy.REGISTRY,
            cross_entropy.CrossEntropyProblem(TensorLayout.dense(F16, 8, 1000), TensorLayout.dense(kiln.Int64, 8)),
            5 * 8000,
            2 * 8000 + 8 * 8 + 2 * 4 * 8,
        ),
        (
            elementwise.REGISTRY,
            elementwise.ElementwiseProblem(
                Functions(abs), (TensorLayout(F16, (8, 100), (0, 1)),), TensorLayout.dense(F32, 8, 100)
            ),
            800,
            2 * 100 + 4 * 800,
        ),
    ],
    ids=["rows", "reductions", "losses", "pointwise"],
)
def test_problems_count_their_work_and_have_plans(family, problem, flops, size):
    assert (problem.flops, problem.bytes) == (flops, size)
    choices = family.choices(problem, H200)
    assert family.choose(problem, H200).config in [choice.config for choice in choices]
    assert choices[0].cost == family.choose(problem, H200).cost
    assert len(choices) == len({(choice.implementation, choice.config) for choice in choices}) > 1
    for choice in choices:
        choice.implementation.check(problem, choice.config, H200)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: softmax(4, 8, out=TensorLayout.dense(F16, 4, 9)), "into"),
        (lambda: softmax(4, 0), "no elements"),
        (lambda: softmax(4, 8, dtype=kiln.Int8), "Int8"),
        (lambda: softmax(4, 8, out=TensorLayout(F16, (4, 8), (1, 4))).matrices, "one stride"),
        (lambda: reduction.ReductionProblem("max", TensorLayout.dense(F32, 4, 0), (1,), F32), "no elements"),
        (
            lambda: cross_entropy.CrossEntropyProblem(TensorLayout.dense(F16, 8, 10), TensorLayout.dense(F32, 8)),
            "classes are",
        ),
        (
            lambda: cross_entropy.CrossEntropyProblem(
                TensorLayout.dense(F16, 8, 10), TensorLayout.dense(kiln.Int64, 9)
            ),
            "a class for each row",
        ),
        (
            lambda: elementwise.ElementwiseProblem(
                Functions(abs), (TensorLayout.dense(F16, 3),), TensorLayout(F16, (3,), (0,))
            ),
            "not repeated",
        ),
    ],
)
def test_problems_that_make_no_sense(asked, says):
    with pytest.raises(kiln.DSLUserCodeTypeError, match=says):
        asked()


def test_rows_that_begin_out_of_step_are_no_rows_between_edges():
    x = softmax(64, 4097, out=TensorLayout(F16, (64, 4097), (4097, 1), 2))
    assert type(rowwise.REGISTRY.choose(x, H200).config) is kernels.RowwiseConfig
    with pytest.raises(kiln.DSLUserCodeTypeError, match="unaligned rows that are equally far"):
        rowwise.REGISTRY.choose(x, H200, UnalignedRowwiseConfig(64, 64))
