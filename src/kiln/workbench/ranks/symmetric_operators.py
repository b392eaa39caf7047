"""`torch.ops.symm_mem`: reductions and copies of symmetric tensors, as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from ..serve_cuda import streams
from . import collectives
from . import world as worlds
from .symmetric_memory import SymmetricMemory, group_of

_OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _reduced(source: torch.Tensor, op: str, group_name: str, what: str) -> torch.Tensor:
    """Return the reduction of the symmetric tensors of all ranks."""
    if op not in _OPS:
        raise RuntimeError(f"{what}: reduce_op is {op!r}: one of {', '.join(_OPS)}")
    if not SymmetricMemory.is_symm_mem_tensor(source):
        raise RuntimeError(f"{what}: the input is allocated with symm_mem.empty()")
    return _of_all(source, group_name, what, lambda tensors: collectives.reduced(tensors, _OPS[op]))


def _of_all(
    source: torch.Tensor, group_name: str, what: str, make: Callable[[Sequence[torch.Tensor]], torch.Tensor]
) -> torch.Tensor:
    """Return what `make` makes of the tensors of all ranks, in the order of the group."""
    group = group_of(group_name)
    streams.finish_current()

    def work(by_rank: Mapping[int, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return make([by_rank[member] for member in group.members])

    return worlds.world().meet((group.key, "operators"), group.members, f"{what}()", source.detach(), work)


def _in_place(what: str) -> Callable[..., torch.Tensor]:
    def operator(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return input.copy_(_reduced(input, reduce_op, group_name, what))

    return operator


def _new(what: str) -> Callable[..., torch.Tensor]:
    def operator(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
        return _reduced(input, reduce_op, group_name, what).clone()

    return operator


def _out(what: str) -> Callable[..., torch.Tensor]:
    def operator(input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(_reduced(input, reduce_op, group_name, what))

    return operator


def _all_gather_out(input: torch.Tensor, group_name: str, out: torch.Tensor) -> torch.Tensor:
    gathered = _of_all(input, group_name, "multimem_all_gather_out", torch.cat)
    return out.copy_(gathered.view(out.shape))


def _reduce_scatter_out(
    input: torch.Tensor, group_name: str, split_last_dim: bool, output: torch.Tensor
) -> torch.Tensor:
    group = group_of(group_name)
    total = _reduced(input, "sum", group_name, "reduce_scatter_out")
    parts = total.chunk(group.size(), dim=-1 if split_last_dim else 0)
    return output.copy_(parts[group.rank()])


_OPERATORS = {
    "multimem_all_reduce_": _in_place("multimem_all_reduce_"),
    "two_shot_all_reduce_": _in_place("two_shot_all_reduce_"),
    "multimem_one_shot_all_reduce": _new("multimem_one_shot_all_reduce"),
    "multimem_one_shot_all_reduce_out": _out("multimem_one_shot_all_reduce_out"),
    "one_shot_all_reduce": _new("one_shot_all_reduce"),
    "one_shot_all_reduce_out": _out("one_shot_all_reduce_out"),
    "two_shot_all_reduce_out": _out("two_shot_all_reduce_out"),
    "multimem_all_gather_out": _all_gather_out,
    "reduce_scatter_out": _reduce_scatter_out,
}
_libraries: list[torch.library.Library] = []


def serve() -> None:
    """Implement the operators that this torch declares."""
    library = torch.library.Library("symm_mem", "IMPL")
    for name, function in _OPERATORS.items():
        if torch._C._dispatch_has_kernel(f"symm_mem::{name}") or hasattr(torch.ops.symm_mem, name):
            library.impl(name, function, "CUDA")
    _libraries.append(library)
