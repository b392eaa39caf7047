"""The programs of `examples/blackwell` as cases: functions with small arguments, and the check of their results."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from example_running import load

from kiln import cute


class Case(NamedTuple):
    """A function to compile, its arguments, and the largest error of its result in units of what rounding allows."""

    function: Any
    arguments: tuple[Any, ...]
    check: Any

    def error(self) -> float:
        """Return the error of the result that the arguments hold."""
        return self.check(*self.arguments)

    def clear(self) -> None:
        """Fill the result, the last array of the arguments, with zeros."""
        result = next(x for x in reversed(self.arguments) if hasattr(x, "shape"))
        result[...] = 0


SIZES: dict[str, tuple[int, ...]] = {
    "step_1_mma": (256, 128, 64),
    "step_2_pipeline": (128, 256, 384),
    "step_3_roles": (136, 264, 200),
    "step_4_persistent": (392, 264, 136),
    "step_5_pairs": (264, 520, 136),
    "step_6_clc": (520, 520, 72),
    "NVFP4": (256, 128, 512),
    "MXFP8": (128, 128, 640),
    "attention": (2, 128, 384),
}
"""M, N, K of the GEMMs; heads, queries and keys of the attention. Each has several tiles, and some have parts of one."""
CLUSTERS = {"step_4_persistent": 2, "step_5_pairs": 1}
"""How many clusters a persistent kernel has, few enough that each computes several tiles."""


def case(name: str, device: str = "", size: tuple[int, ...] | None = None) -> Case:
    """Return a program with arguments on a device of PyTorch, or of numpy."""
    file = {"NVFP4": "step_7_block_scaled", "MXFP8": "step_7_block_scaled"}.get(name, name)
    module = load(f"blackwell/{file}.py")
    module.harness.DEVICE = device
    size = SIZES[name] if size is None else size
    if name == "attention":
        return Case(module.attention, module.tensors(*size), module.check)
    if file != name:
        return Case(module.gemm, module.tensors(*size, getattr(module, name)), module.check)
    further = (CLUSTERS[name],) if name in CLUSTERS else ()
    arguments = (*module.harness.matrices(*size), *further)
    return Case(module.gemm, arguments, lambda a, b, c, *_: module.harness.check(a, b, c))


def check_results(name: str, device: str = "", size: tuple[int, ...] | None = None) -> None:
    """Compile a program for the current target, and compare the results of several calls with numpy.

    On the CPU target a call has a seed: asynchronous operations are carried out at once (0), or in other orders.
    """
    example = case(name, device, size)
    compiled = cute.compile(example.function, *example.arguments)
    for seed in range(3):
        example.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KILN_CPU_SEED", str(seed))
            compiled(*example.arguments)
        assert example.error() < 1, (name, seed)
