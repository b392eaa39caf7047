"""Peers of the kernel library as those who want them fast call them, for the benchmarks beside this file."""
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import importlib
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[[], Any]


def load(paths: list[str]) -> None:
    """Make peers importable. `flash_attn` itself imports an extension: a bare package takes its place."""
    sys.path.extend(map(os.path.abspath, paths))
    for path in sys.path:
        if (Path(path) / "flash_attn" / "cute").is_dir():
            package: Any = types.ModuleType("flash_attn")
            package.__path__ = [f"{path}/flash_attn"]
            sys.modules["flash_attn"] = package
            return


def versions() -> str:
    """Return the versions of the libraries whose own builds are called, where they say one."""
    found = {"cuDNN": str(torch.backends.cudnn.version())}
    for name, module in (("QuACK", "quack"), ("FlashAttention-3", "flash_attn_interface"), ("FlashMLA", "flash_mla")):
        try:
            found[name] = importlib.import_module(module).__version__
        except Exception:  # not here, or without a version: its column says which
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())


def reason(failure: Exception) -> str:
    """Return why a peer is missing, for a cell."""
    lines = str(failure).strip().splitlines() or [type(failure).__name__]
    return lines[0].replace("|", "/")[:80]


def compiled(function: Callable[..., Any], *arguments: Any) -> Call:
    """Return a call of what torch.compile makes of a function for these arguments, tuned here and now."""
    tuned = torch._inductor.list_mode_options("max-autotune-no-cudagraphs")
    # what is compiled may come from another process, but not what was fastest beside other work
    made = torch.compile(function, dynamic=False, options={**tuned, "autotune_local_cache": False})
    return lambda: made(*arguments)


def quack_configs(a: Any, swap: bool = True) -> list[Any]:
    """Return the configs that QuACK's tuner tries for a GEMM on this GPU, if not `swap` without those of A and B swapped."""
    from quack.gemm_interface import gemm_tuned, prune_invalid_gemm_configs

    tried = [each.kwargs["config"] for each in prune_invalid_gemm_configs(gemm_tuned.configs, {"A": a})]
    return [config for config in tried if swap or not config.swap_ab]


def quack_gemm(a: Any, b: Any, out: Any, activation: str | None, bias: Any) -> Callable[[Any], Any]:
    """Return QuACK's GEMM as a function of its config."""
    from quack.gemm_interface import gemm_act, gemm_tuned

    if activation is None:
        return lambda config: (gemm_tuned.fn(a, b, out, config=config), out)[1]
    return lambda config: gemm_act(
        a, b, bias=bias, postact_out=out, activation=activation, store_preact=False, config=config
    )[1]


def fastest(call: Callable[[Any], Any], configs: list[Any]) -> Call:
    """Return the call with the config that took least time; a config that cannot run is none."""
    times: dict[int, float] = {}
    failure: Exception | None = None
    for number, config in enumerate(configs):
        try:
            for _ in range(3):
                call(config)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(6):
                call(config)
            end.record()
            end.synchronize()
            times[number] = start.elapsed_time(end)
        except Exception as failed:  # another config may run
            failure = failed
    if not times:
        raise RuntimeError(f"none of {len(configs)} configs runs: {failure}")
    best = configs[min(times, key=times.__getitem__)]
    return functools.partial(call, best)


def quack_gemms() -> Iterator[Call]:
    """Yield small GEMMs of QuACK with each config; the same code computes large ones."""
    a = torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
    bias, out = a[0].clone(), torch.empty_like(a)
    for activation, added in ((None, None), ("silu", None), ("gelu_tanh_approx", bias)):
        call = quack_gemm(a, a.T, out, activation, added)
        yield from (functools.partial(call, config) for config in quack_configs(a, activation is None))
