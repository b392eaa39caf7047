"""`nvshmem.core` for programs that allocate with NVSHMEM, where the package is missing: its host functions.

Memory comes from the same heap as that of `torch.distributed._symmetric_memory`. Allocations are collective, as
NVSHMEM's are: every PE calls them in the same order with the same sizes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch

from ..serve_cuda import device as served
from ..serve_cuda import ranks, streams
from . import world as worlds
from .heap import Block, heap
from .symmetric_memory import address_of, tensor_at

S = TypeVar("S")
T = TypeVar("T")


class Teams(enum.IntEnum):
    """Groups of PEs. All PEs are on one node."""

    TEAM_INVALID = -1
    TEAM_WORLD = 0
    TEAM_SHARED = 1
    TEAM_NODE = 2
    TEAM_SAME_MYPE_NODE = 3
    TEAM_SAME_GPU = 4
    TEAM_GPU_LEADERS = 5


class NvshmemError(RuntimeError):
    """A wrong use of NVSHMEM."""


NvshmemInvalid = NvshmemError


class InitStatus(enum.IntEnum):
    """Whether `init` was called."""

    STATUS_NOT_INITIALIZED = 0
    STATUS_IS_BOOTSTRAPPED = 1
    STATUS_IS_INITIALIZED = 2


class _UniqueId:
    """What the first PE makes and the others get, by which they find each other."""

    def __init__(self) -> None:
        self._data: np.ndarray = np.zeros(1, dtype=[("version", "<i4"), ("internal", "i1", (124,))])


class _Allocation:
    """An allocation of all PEs, as one of them knows it."""

    def __init__(self, blocks: tuple[Block, ...], here: int) -> None:
        self.blocks = blocks
        self.here = here


class _Pe:
    """What is known of a PE."""

    def __init__(self) -> None:
        self.is_initialized = False
        self.by_address: dict[int, _Allocation] = {}


_pes: dict[int, _Pe] = {}


def _here() -> _Pe:
    number = ranks.current()
    pe = None if number is None else _pes.get(number)
    if pe is None or not pe.is_initialized:
        raise NvshmemError("NVSHMEM is not initialized: call nvshmem.core.init() first")
    return pe


def _collective(what: str, data: S, work: Callable[[Mapping[int, S]], T]) -> T:
    world = worlds.world()
    streams.finish_current()
    return world.meet("nvshmem", range(world.size), what, data, work)


def get_unique_id(empty: bool = False) -> _UniqueId:
    """Return a new identifier; `empty`: one to be filled in."""
    uid = _UniqueId()
    if not empty:
        uid._data["version"] = 1
    return uid


def init(
    device: object = None,
    uid: object = None,
    rank: int | None = None,
    nranks: int | None = None,
    mpi_comm: object = None,
    initializer_method: str = "",
    **_: object,
) -> None:
    """Initialize this PE, whose number is that of its rank."""
    number = worlds.world().here().number
    if (rank is not None and rank != number) or nranks not in (None, worlds.world().size):
        raise NvshmemError(f"init(rank={rank}, nranks={nranks}) on rank {number} of {worlds.world().size}")
    pe = _pes.setdefault(number, _Pe())
    pe.is_initialized = True


def finalize() -> None:
    """End this PE's use of NVSHMEM. All of its memory must have been freed."""
    pe = _here()
    _collective("nvshmem finalize()", None, lambda _: None)
    pe.is_initialized = False
    pe.by_address.clear()


def init_status() -> InitStatus:
    """Return whether this PE is initialized."""
    pe = _pes.get(worlds.world().here().number)
    return InitStatus.STATUS_IS_INITIALIZED if pe and pe.is_initialized else InitStatus.STATUS_NOT_INITIALIZED


def my_pe() -> int:
    """Return the number of this PE."""
    return worlds.world().here().number


def n_pes() -> int:
    """Return how many PEs there are."""
    return worlds.world().size


def team_my_pe(team: object = Teams.TEAM_WORLD) -> int:
    """Return the number of this PE in a team."""
    return my_pe() if team in (Teams.TEAM_WORLD, Teams.TEAM_SHARED, Teams.TEAM_NODE) else 0


def team_n_pes(team: object = Teams.TEAM_WORLD) -> int:
    """Return how many PEs a team has."""
    return n_pes() if team in (Teams.TEAM_WORLD, Teams.TEAM_SHARED, Teams.TEAM_NODE) else 1


def tensor(
    shape: int | Sequence[int], dtype: torch.dtype = torch.float32, release: bool = False, **_: object
) -> torch.Tensor:
    """Return a tensor of this PE; every PE allocates one of the same size."""
    pe = _here()
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    device = served.current_number()
    bytes_ = math.prod(extents) * dtype.itemsize

    def allocate(sizes: Mapping[int, tuple[int, int]]) -> tuple[Block, ...]:
        if len({size for _, size in sizes.values()}) > 1:
            said = ", ".join(f"{size} bytes on PE {number}" for number, (_, size) in sizes.items())
            raise NvshmemError(f"nvshmem.core.tensor() is collective, and sizes differ: {said}")
        return tuple(heap().allocate(number, size) for number, size in sizes.values())

    blocks = _collective("nvshmem.core.tensor()", (device, bytes_), allocate)
    here = my_pe()
    pe.by_address[blocks[here].address] = _Allocation(blocks, here)
    return tensor_at(blocks[here].address, extents, dtype, device)


def bytetensor(shape: int | Sequence[int], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return a tensor of bytes of this PE."""
    return tensor(shape, dtype)


def _allocation(of: torch.Tensor, what: str) -> tuple[_Allocation, int]:
    """Return the allocation of a tensor, and how many bytes of it are before the tensor."""
    address = address_of(of)
    block = heap().block_at(address)
    allocation = None if block is None else _here().by_address.get(block.address)
    if allocation is None or block is None:
        raise NvshmemError(f"{what} takes a tensor of nvshmem.core.tensor(), or a view of one")
    return allocation, address - block.address


def get_peer_tensor(tensor: torch.Tensor, peer_pe: int) -> torch.Tensor:
    """Return the same tensor of another PE, which kernels of this one reach."""
    allocation, offset = _allocation(tensor, "get_peer_tensor")
    if not 0 <= peer_pe < n_pes():
        raise NvshmemError(f"get_peer_tensor of PE {peer_pe}: there are {n_pes()}")
    if peer_pe == allocation.here:
        return tensor
    address = allocation.blocks[peer_pe].address + offset
    return tensor_at(address, tensor.shape, tensor.dtype, served.current_number())


def get_multicast_tensor(team: object, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor at the multicast address that stands for the same tensor of all PEs of a team."""
    allocation, offset = _allocation(tensor, "get_multicast_tensor")
    if served.current().major < 9:
        raise NvshmemError("multicast addresses exist from sm_90 on")
    chosen = allocation.blocks
    if team_n_pes(team) != n_pes():
        chosen = (allocation.blocks[allocation.here],)
    start = heap().multicast([block.address for block in chosen], chosen[0].size)
    return tensor_at(start + offset, tensor.shape, tensor.dtype, served.current_number())


def free_tensor(tensor: torch.Tensor) -> None:
    """Give a tensor back. Views of other PEs' memory and multicast addresses are only let go of."""
    pe = _here()
    streams.finish_current()
    allocation = pe.by_address.pop(address_of(tensor), None)
    if allocation is not None:
        blocks = allocation.blocks
        _collective("nvshmem.core.free_tensor()", None, lambda _: [heap().free(block) for block in blocks])


def barrier(team: object = Teams.TEAM_WORLD, stream: object = None) -> None:
    """Wait for all PEs of a team."""
    _collective("nvshmem barrier()", None, lambda _: None)


sync = barrier_all = sync_all = barrier


def serve(module: ModuleType) -> None:
    """Put the functions into `nvshmem.core`."""
    names = (Teams, NvshmemError, InitStatus, get_unique_id, init, finalize, init_status, my_pe, n_pes)
    functions = (team_my_pe, team_n_pes, tensor, bytetensor, get_peer_tensor, get_multicast_tensor, free_tensor)
    for value in (*names, *functions):
        setattr(module, value.__name__, value)
    for name in ("barrier", "sync", "barrier_all", "sync_all", "NvshmemInvalid"):
        setattr(module, name, globals()[name])
