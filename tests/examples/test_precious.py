"""A second language on `kiln.base_dsl`: its own dialect, control flow, arguments and lowering."""

from __future__ import annotations

import re

import numpy as np
import pytest
from example_running import EXAMPLES, load

from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLUserCodeError, DSLUserCodeTypeError
from kiln.base_dsl.typing import Float32
from kiln.interop.arguments.native_caller import NativeCaller

demo = load("precious/demo.py")
precious = demo.precious


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def test_gemm_and_branches_against_numpy():
    a, b, c = matrix(7, 5), matrix(5, 9, 1), matrix(7, 9, 2)
    want = np.maximum(c + a @ b, 0)
    demo.matmul_relu(a, b, c)
    np.testing.assert_allclose(c, want, atol=1e-5)


@pytest.mark.parametrize("limit", [-9.0, 0.5, 1.0, 9.0])
def test_early_return_from_nested_loops(limit: float):
    m = matrix(4, 6)
    above = np.flatnonzero(m > limit)
    assert demo.first_above(m, limit) == (above[0] if len(above) else -1)


@pytest.mark.parametrize("n", [1, 6, 27, 97])
@pytest.mark.parametrize("most", [0, 7, 1000])
def test_while_with_break(n: int, most: int):
    def collatz(n: int) -> int:
        steps = 0
        while n != 1 and steps != most:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    assert demo.collatz(n, most) == collatz(n)


def test_calls_share_one_function():
    a, b = matrix(3, 4), matrix(4, 5, 1)
    product = a @ b
    compiled = precious.compile(demo.corner, a, b)
    assert compiled(a, b) == pytest.approx(product[0, 0] + product[2, 4], abs=1e-6)
    assert compiled.__mlir__.count("func.func @dot") == 1
    assert compiled.__mlir__.count("call @dot") == 2


@precious.jit
def mixed(n, scale: Float32):
    """Values of several types, carried through every construct."""
    even, odd, weight = 0, 0, scale
    for i in range(n):
        if i % 2 == 0:
            even += i
            if even > 40:
                break
        else:
            if i == 5:
                continue
            odd, weight = odd + i, weight * 0.5
        j = i
        while j > 0:
            j -= 2
            weight += 1.0 if j == 1 else 0.25
    return even, odd, weight


@pytest.mark.parametrize("n", [0, 1, 6, 40])
def test_carried_values_of_mixed_types(n: int):
    got, want = mixed(n, 3.0), mixed.function(n, 3.0)
    assert got == pytest.approx(want)


def test_the_program_is_in_its_own_dialect():
    text = precious.compile(mixed, 3, 1.0).__mlir__
    for name in ("if", "while", "make_cell", "get", "set", "test", "end"):
        assert f'"precious.{name}"' in text
    assert not re.search(r"\b(scf|cf|cute)\.", text)
    a = matrix(2, 2)
    text = precious.compile(demo.matmul_relu, a, a, a).__mlir__
    assert '"precious.gemm"' in text
    assert '"precious.for"' in text
    assert "!precious.matrix<f32, 2 : i64, 2 : i64>" in text
    assert not re.search(r"\b(scf|cf|cute)\.", text)


def test_a_new_shape_is_a_new_specialization():
    for rows in (1, 2, 3):
        assert demo.first_above(np.full((rows, 2), 2.0, np.float32), 1.0) == 0
    assert len(demo.first_above._specializations.codes()) >= 3


def test_errors_are_located_in_the_program():
    with pytest.raises(DSLUserCodeTypeError, match="C-contiguous"):
        demo.first_above(matrix(4, 4).T, 0.0)
    with pytest.raises(CompilerDiagnosticError, match="cannot add") as failure:
        demo.matmul_relu(matrix(2, 3), matrix(2, 3), matrix(2, 3))
    assert "precious.gemm(a, b, c)" in str(failure.value)

    @precious.jit
    def one_branch(n):
        if n > 0:
            x = 1
        return x

    with pytest.raises(DSLUserCodeError, match="'x' has a value in only one branch"):
        one_branch(3)


def test_it_stands_on_base_dsl_alone():
    for file in (EXAMPLES / "precious").glob("*.py"):
        text = file.read_text()
        assert not re.search(r"kiln\.(cute|dialects)|cutlass", text)


def test_native_code_can_take_its_calls(taker, monkeypatch):
    """A language is given its caller. Numbers are taken by native code, matrices are left to Python."""
    caller = NativeCaller()
    monkeypatch.setattr(precious.DSL, "caller", caller, raising=False)
    collatz, relu = precious.jit(demo.collatz.function), precious.jit(demo.matmul_relu.function)
    assert [collatz(n, 100) for n in (1, 2, 3, 27)] == [0, 1, 7, 100]
    assert hasattr(collatz, "for_caller") == (taker == "native")
    with pytest.raises(DSLUserCodeTypeError, match="got the float 1.5"):
        collatz(1.5, 100)
    for _ in range(3):
        a, b, c = matrix(3, 4), matrix(4, 5, 1), np.zeros((3, 5), np.float32)
        relu(a, b, c)
        np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5)
    assert not hasattr(relu, "for_caller")


def test_it_runs_as_a_program(child):
    done = child("-m", "kiln", "run", EXAMPLES / "precious" / "demo.py")
    assert done.returncode == 0, done.stderr
    assert '"precious.gemm"' in done.stdout
    assert "matmul_relu is right: True" in done.stdout
    assert "collatz(27): 111 steps; with a limit of 10: 10" in done.stdout
    assert "corner is right: True" in done.stdout
