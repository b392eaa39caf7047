"""Functions of the kernel library as Cases: `kiln tune kiln.kernels:gemm`.

Their configs are those of all implementations that can compute the problem, the best predicted first. As JSON, a
config is the name of its class and its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import kiln
from kiln import kernels
from kiln.base_dsl.target import get_target
from kiln.hardware import current
from kiln.kernels.dispatch import registry
from kiln.kernels.tuned_configs import config_from_dict, config_to_dict

from .cases import Case, ContractError

if TYPE_CHECKING:
    from kiln.hardware.devices import Device


class _Function(NamedTuple):
    """A function of the library as a Case: default problem, shapes of its arrays, reference, options of the call."""

    problem: dict[str, Any]
    shapes: Callable[..., list[tuple[int, ...]]]
    reference: Callable[..., Any]
    options: dict[str, Any] = {}


def _functional() -> Any:
    import torch

    return torch.nn.functional


def _attention(q: Any, k: Any, v: Any) -> Any:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return _functional().scaled_dot_product_attention(*heads_first).transpose(1, 2)


_ROWS = {"m": 4096, "n": 4096, "dtype": "float16"}
_GEMM = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}
_FUNCTIONS = {
    "gemm": _Function(_GEMM, lambda m, n, k: [(m, k), (k, n)], lambda a, b: a @ b),
    "flash_attention": _Function(
        {"batch": 4, "length": 2048, "heads": 16, "dim": 128, "dtype": "float16"},
        lambda batch, length, heads, dim: 3 * [(batch, length, heads, dim)],
        _attention,
    ),
    "softmax": _Function(_ROWS, lambda m, n: [(m, n)], lambda x: _functional().softmax(x, -1)),
    "rms_norm": _Function(
        _ROWS, lambda m, n: [(m, n), (n,)], lambda x, weight: _functional().rms_norm(x, x.shape[-1:], weight, 1e-6)
    ),
    "layer_norm": _Function(
        _ROWS,
        lambda m, n: [(m, n), (n,), (n,)],
        lambda x, weight, bias: _functional().layer_norm(x, x.shape[-1:], weight, bias),
    ),
    "sum": _Function(_ROWS, lambda m, n: [(m, n)], lambda x: x.sum(1), {"axis": 1}),
}


def case(name: str | None) -> Case:
    """Return the Case of a function of `kiln.kernels`."""
    if name not in _FUNCTIONS:
        raise ContractError(f"kiln.kernels:{name or '?'} is not a Case; there are: {', '.join(_FUNCTIONS)}")
    function = _FUNCTIONS[name]

    def kernel_fn(*inputs: object, config: Mapping[str, object] | None = None) -> Any:
        return getattr(kernels, name)(*inputs, **function.options, config=config_from_dict(config))

    def get_inputs(dtype: str, **sizes: int) -> list[Any]:
        import torch

        here = "cpu" if get_target().on_host or not torch.cuda.is_available() else "cuda"
        return [torch.randn(shape, dtype=getattr(torch, dtype), device=here) for shape in function.shapes(**sizes)]

    def configs(**problem: object) -> list[dict[str, Any]]:
        registry, call = _registry_and_problem(name, problem)
        return [config_to_dict(choice.config) for choice in registry.choices(call, current.device())]

    def validate(config: Mapping[str, object], problem: Mapping[str, object], device: Device) -> list[str]:
        registry, call = _registry_and_problem(name, problem)
        return registry.validate(call, config_from_dict(config), device)

    def perf_model(config: Mapping[str, object], problem: Mapping[str, object], device: Device) -> float:
        registry, call = _registry_and_problem(name, problem)
        chosen = config_from_dict(config)
        return registry.choose(call, device, chosen).implementation.cost(call, chosen, device)

    def flops_bytes(**problem: object) -> tuple[float, float]:
        _, call = _registry_and_problem(name, problem)
        return call.flops, call.bytes

    names = {
        "fields": function.problem,
        "kernel_fn": kernel_fn,
        "reference_fn": function.reference,
        "get_inputs": get_inputs,
        "configs": configs,
        "validate": validate,
        "perf_model": perf_model,
        "flops_bytes": flops_bytes,
    }
    return Case(name, f"kiln.kernels:{name}", None, names)


def _registry_and_problem(name: str, problem: Mapping[str, Any]) -> tuple[registry.Registry, Any]:
    """Return the registry and the problem of a call, by making the call without computing anything."""
    import torch

    function = _FUNCTIONS[name]
    sizes = {field: value for field, value in problem.items() if field != "dtype"}
    arrays = [torch.empty(shape, dtype=getattr(torch, problem["dtype"])) for shape in function.shapes(**sizes)]
    plain = getattr(kernels, name).__wrapped__  # bypasses the recorder, which would keep an empty call
    with kiln.target("cpu"), registry.collecting_problems() as problems:
        plain(*arrays, **function.options)
    return problems[0]
