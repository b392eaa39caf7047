"""Kernels leave a module, with the functions they call; launches say which kernel they mean by a number."""

from __future__ import annotations

import pytest
from cpu_testing import CONSTANTS, LAUNCH_TYPES, SIZES, launch, parse
from ir_testing import check

from kiln.base_dsl.diagnostics import CompilerDiagnosticError
from kiln.mlir import context, ir
from kiln.targets.nvidia.passes.kernel_outlining import LaunchFacts, outline_kernels

KERNELS = """
func.func @twice(%x: i32) -> i32 { %y = arith.addi %x, %x : i32 func.return %y : i32 }
func.func @first(%n: i32) attributes {cute.kernel} { func.return }
func.func @second(%n: i32) attributes {cute.kernel} { %y = func.call @twice(%n) : (i32) -> i32 func.return }
"""


def outlined(body: str, kernels: str = KERNELS) -> tuple[str, str, list[LaunchFacts]]:
    """The text of the host's module and of the device's, and what is known of the kernels."""
    module = parse(f"{kernels}\nfunc.func @f(%n: i32, {SIZES}) {{ {CONSTANTS} {body} func.return }}")
    with context(), ir.Location.unknown():
        module.operation.verify()
        device, facts = outline_kernels(module)
        module.operation.verify()
        device.operation.verify()
    return str(module), str(device), facts


def test_kernels_leave_with_what_they_call() -> None:
    host, device, facts = outlined(launch("second", [("%n", "i32")]))
    check(host, "func.func @twice\nnot: cute.kernel\nfunc.func @f\nnot: cuda.launch_ex\ncute_nvgpu.driver_launch")
    assert "index = 1 : i32" in host and 'name = "second"' in host
    check(device, "func.func @twice\nfunc.func @first\nfunc.func @second\ncall @twice\nnot: @f(")
    assert [fact.name for fact in facts] == ["first", "second"]
    assert [fact.launched for fact in facts] == [False, True]


def launches(*threads: str) -> str:
    """Launches of the first kernel, each with so many threads in a block."""
    made = "%w = arith.constant 1 : i64\n%c64 = arith.constant 64 : i64\n%c128 = arith.constant 128 : i64\n"
    made += "%unknown = arith.extsi %bx : i32 to i64\n%a = builtin.unrealized_conversion_cast %n : i32 to tuple<i32>\n"
    for count in threads:
        sizes = ", ".join(["%w"] * 3 + [count] + ["%w"] * 5)
        made += f'"cuda.launch_ex"({sizes}, %zero64, %zero64, %a) {{kernel = @first}} : ({LAUNCH_TYPES}, tuple<i32>) -> ()\n'
    return made


@pytest.mark.parametrize(
    ("threads", "block"),
    [
        (["%c128"], (128, 1, 1)),
        (["%c128", "%c128"], (128, 1, 1)),
        (["%c128", "%c64"], None),
        (["%c128", "%unknown"], None),
        (["%unknown"], None),
    ],
)
def test_what_all_launches_of_a_kernel_agree_on_is_known(threads: list[str], block: tuple[int, ...] | None) -> None:
    assert outlined(launches(*threads))[2][0].block == block


@pytest.mark.parametrize(
    ("kernel", "arguments", "said"),
    [
        ("twice", [("%n", "i32")], "launch of twice, which is not a kernel of this module"),
        ("first", [], r"kernel first takes \(i32\) but is launched with \(\)"),
        ("first", [("%zero64", "i64")], r"kernel first takes \(i32\) but is launched with \(i64\)"),
    ],
)
def test_launches_that_fit_no_kernel_are_refused(kernel: str, arguments: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(CompilerDiagnosticError, match=said):
        outlined(launch(kernel, arguments))
