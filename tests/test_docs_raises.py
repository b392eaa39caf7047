"""What the reference says that a function raises is what it raises: a call that is refused is looked up in the list."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kiln import cute, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError

ROOT = Path(__file__).resolve().parents[1]


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def raises() -> Any:
    return module("docs/_ext/kiln_raises.py")


def is_listed(raises: Any, function: Any, error: BaseException) -> bool:
    """Whether the list of a function has an error of this class with this text, and says what to write instead."""

    def fits(pattern: str, text: str) -> bool:
        text = " ".join(text.split())
        return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), text, re.DOTALL) is not None

    message, hint = getattr(error, "message", str(error)), getattr(error, "hint", "")
    listed = raises.refusals(function)
    return any(x.kind is type(error) and fits(x.message, message) and fits(x.hint, hint) for x in listed)


MATRIX = np.zeros((3, 3), np.float32)
REFUSED: list[tuple[Any, Callable[[], Any]]] = [
    (cute.append, lambda: cute.append(cute.make_layout((2, 3)), 3)),
    (cute.prepend, lambda: cute.prepend((1, 2, 3), 4, 2)),
    (cute.composition, lambda: cute.composition(cute.make_layout((2, 3)), "x")),
    (cute.make_layout, lambda: cute.make_layout((2, -3))),
    (cute.make_layout, lambda: cute.make_layout((2, 3), stride=(1, (2, 3)))),
    (cute.size, lambda: cute.size("x")),
    (cute.unflatten, lambda: cute.unflatten((1, 2), (0, (0, 0)))),
    (cute.domain_offset, lambda: cute.domain_offset(1, cute.make_layout(3))),
    (cute.coalesce, lambda: cute.coalesce(cute.make_layout(3), target_profile=(1, 1))),
    (cute.copy, lambda: cute.copy(1, 2, 3)),
    (cute.arch.atomic_add, lambda: cute.arch.atomic_add(1, 2)),
    (cute.arch.load, lambda: cute.arch.load(1, cute.Float32)),
    (kernels.softmax, lambda: kernels.softmax(np.zeros((3, 3), object))),
    (kernels.softmax, lambda: kernels.softmax(np.zeros((3, 3), np.int32))),
    (kernels.rms_norm, lambda: kernels.rms_norm(MATRIX, quantize="x")),
    (kernels.rms_norm, lambda: kernels.rms_norm(MATRIX, np.zeros(4, np.float32))),
    (kernels.gemm, lambda: kernels.gemm(MATRIX, MATRIX, beta=2.0)),
    (kernels.gemm, lambda: kernels.gemm(MATRIX, MATRIX, bias=np.zeros(5, np.float32))),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_what_is_raised_is_listed(raises: Any, i: int) -> None:
    function, call = REFUSED[i]
    with pytest.raises(Exception) as caught:
        call()
    assert is_listed(raises, function, caught.value), (caught.value, raises.refusals(function))


def test_errors_inside_a_kernel_are_listed(raises: Any) -> None:
    @cute.kernel
    def kernel(a: cute.Tensor):
        cute.arch.atomic_add(a.iterator, 1.0, sem="sequential")

    @cute.jit
    def main(a: cute.Tensor):
        kernel(a).launch(grid=(1, 1, 1), block=(32, 1, 1))

    with pytest.raises(DSLUserCodeTypeError) as caught:
        main(np.zeros(4, np.float32))
    assert "sem is 'sequential'" in str(caught.value)
    assert is_listed(raises, cute.arch.atomic_add, caught.value)


def test_operators_of_pytorch_raise_what_is_listed(raises: Any) -> None:
    torch = pytest.importorskip("torch")
    from kiln import nn

    with pytest.raises(RuntimeError) as caught:
        nn.softmax(torch.zeros(3, 3, dtype=torch.int32))
    assert {x.kind for x in raises.refusals(nn.softmax)} == {RuntimeError}
    assert is_listed(raises, nn.softmax, caught.value)


def check(x: int, what: str = "x", *, positive: bool = False) -> None:
    if positive and x < 0:
        raise ValueError(f"{what} is {x}, negative")


def refusing(x: int, y: int) -> int:
    check(x, "the width")
    check(y, "the height", positive=True)
    try:
        check(x, "the depth", positive=True)
    except ValueError:
        raise IndexError(f"no place {x!r}") from None
    if y:
        return 1
    raise TypeError("y is 0")


def test_branches_that_no_call_takes_and_errors_that_are_caught_are_left_out(raises: Any, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__].check, "__module__", "kiln.made_up")
    assert [(x.kind, x.message) for x in raises.refusals(refusing)] == [
        (ValueError, "the height is …, negative"),
        (IndexError, "no place …"),
        (TypeError, "y is 0"),
    ]


def test_most_functions_say_what_they_raise(raises: Any) -> None:
    pytest.importorskip("torch")
    api = module("tools/api_pages.py")
    functions = {
        id(value): value for name in api.SITE for _, value in api.public(name) if not isinstance(value, type)
    }.values()
    listed = [raises.refusals(each) for each in functions]
    assert len(listed) > 460
    assert sum(map(bool, listed)) > 390
    texts = [f"{x.message} {x.hint}" for each in listed for x in each]
    assert [x for x in texts if "KernelFunction" in x] == []
    assert raises.fields(cute.unflatten)[0].startswith(":raises LayoutError: unflatten needs one item per leaf")
