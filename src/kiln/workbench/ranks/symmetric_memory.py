"""`torch.distributed._symmetric_memory` of ranks that are threads: tensors whose memory all ranks of a group reach."""

# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import ctypes
import math
import struct
import weakref
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import cast

import torch
import torch.distributed._symmetric_memory
from torch.distributed import distributed_c10d

from ..serve_cuda import device as served
from ..serve_cuda import streams
from ..serve_cuda.marks import mark
from . import checked
from . import world as worlds
from .heap import Block, heap
from .process_group import ThreadGroup

SIGNAL_PAD_BYTES = 2048 * 4
"""Bytes of a rank's signal pad: 32-bit numbers by which ranks tell each other that they have come."""


class _Owner:
    """Gives memory back when the last tensor on it is gone."""

    def __init__(self, block: Block) -> None:
        self.block = block
        _owners[block.address] = self
        weakref.finalize(self, heap().free, block)


_owners: weakref.WeakValueDictionary[int, _Owner] = weakref.WeakValueDictionary()
"""The owners of allocations, by address."""


def tensor_at(address: int, size: Sequence[int], dtype: torch.dtype, device: int, keep: object = None) -> torch.Tensor:
    """Return a row-major tensor of a device on given memory; `keep` stays alive with it."""
    with torch._C.DisableTorchFunction():
        bytes_ = math.prod(size) * dtype.itemsize
        memory = (ctypes.c_uint8 * max(bytes_, 1)).from_address(address)
        memory.keep = keep  # pyright: ignore[reportAttributeAccessIssue]
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        tensor = flat[:bytes_].view(dtype).view(tuple(size))
    mark(tensor, device)
    return tensor


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor, also of one without elements."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.itemsize


def allocate(size: Sequence[int], dtype: torch.dtype, device: int) -> torch.Tensor:
    """Return a tensor of zeros in the symmetric memory of a device."""
    block = heap().allocate(device, math.prod(size) * dtype.itemsize)
    return tensor_at(block.address, size, dtype, device, _Owner(block))


class _Rendezvous:
    """What the ranks of a group told each other about an allocation."""

    def __init__(self, blocks: Sequence[Block], pads: Sequence[Block], tables: Sequence[Block]) -> None:
        self.blocks = list(blocks)
        self.owners: list[_Owner | None] = [_owners.get(block.address) for block in blocks]
        """Memory stays as long as a rank has a handle of it."""
        self.pads = list(pads)
        self.tables = list(tables)
        self.points: dict[int, object] = {}
        """What the rank had done that raised a signal last, by the signal's address."""
        for table in self.tables:
            count = len(self.blocks)
            addresses = [*(b.address for b in self.blocks), *(p.address for p in self.pads)]
            ctypes.memmove(table.address, struct.pack(f"<{2 * count}Q", *addresses), 16 * count)


class SymmetricMemory:
    """`_SymmetricMemory`: a rank's handle of an allocation that all ranks of a group have made."""

    signal_pad_size: int = SIGNAL_PAD_BYTES

    def __init__(self, group: ThreadGroup, shared: _Rendezvous, offset: int) -> None:
        self._group = group
        self._shared = shared
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.offset: int = offset
        self.buffer_size: int = shared.blocks[self.rank].size

    # --- made by these

    @staticmethod
    def empty_strided_p2p(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        group_name: str | None = None,
        alloc_id: object = None,
    ) -> torch.Tensor:
        """Return a tensor that may be given to `rendezvous`. Its memory is zeros."""
        named = torch.device(device)
        if named.type != "cuda":
            raise RuntimeError(f"symmetric memory is memory of a GPU, not of {named}: pass device='cuda'")
        number = served.check_number(named.index)
        extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
        flat = allocate((extent,), dtype, number)
        return flat.as_strided(tuple(size), tuple(stride))

    @staticmethod
    def rendezvous(tensor: torch.Tensor, group_name: str | ThreadGroup | None = None) -> SymmetricMemory:
        """Return the handle of a tensor that each rank of the group has allocated alike."""
        group = group_of(group_name)
        block = heap().block_at(address_of(tensor))
        if block is None:
            raise RuntimeError(
                "rendezvous() of a tensor that is not in symmetric memory: allocate it with symm_mem.empty()"
            )
        shared = worlds.world().meet((group.key, "rendezvous"), group.members, "rendezvous()", block, _agree)
        return SymmetricMemory(group, shared, address_of(tensor) - block.address)

    @staticmethod
    def has_multicast_support(device_type: object, device_index: int) -> bool:
        """Return whether GPUs of the architecture have multicast addresses."""
        served.check_number(int(device_index))
        return served.current().major >= 9

    @staticmethod
    def is_symm_mem_tensor(tensor: torch.Tensor) -> bool:
        return heap().block_at(address_of(tensor)) is not None

    @staticmethod
    def set_group_info(group_name: str, rank: int, world_size: int, store: object) -> None:
        """Do nothing: groups are known."""

    @staticmethod
    def set_backend(name: str) -> None:
        """Do nothing: all kinds of symmetric memory are alike here."""

    @staticmethod
    def get_backend(device: object) -> str:
        return "CUDA"

    @staticmethod
    def memset32(input: torch.Tensor, offset: int, val: int, count: int = 1) -> torch.Tensor:
        """Set 32-bit numbers of a tensor."""
        with torch._C.DisableTorchFunction():
            input.view(torch.int32).flatten()[offset : offset + count].fill_(val)
        return input

    @staticmethod
    def stream_write_value32(input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        """Write a 32-bit number of a tensor, in the order of the stream."""
        return SymmetricMemory.memset32(input, offset, val)

    # --- addresses and tensors

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._shared.blocks[self.rank].device)

    @property
    def buffer_ptrs(self) -> list[int]:
        """The address of the allocation of each rank."""
        return [block.address for block in self._shared.blocks]

    @property
    def buffer_ptrs_dev(self) -> int:
        """Where these addresses lie in the memory of this rank's device."""
        return self._shared.tables[self.rank].address

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """The address of the signal pad of each rank."""
        return [pad.address for pad in self._shared.pads]

    @property
    def signal_pad_ptrs_dev(self) -> int:
        return self.buffer_ptrs_dev + 8 * self.world_size

    @property
    def multicast_ptr(self) -> int:
        """The multicast address of the allocations; 0 where GPUs have none."""
        if served.current().major < 9:
            return 0
        return heap().multicast(self.buffer_ptrs, self.buffer_size)

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """Return the allocation of a rank, or a part of it, as a tensor of this rank's device."""
        bytes_ = math.prod(sizes) * dtype.itemsize
        start = storage_offset * dtype.itemsize
        if start + bytes_ > self.buffer_size:
            raise RuntimeError(
                f"get_buffer of {bytes_} bytes from byte {start} on: the allocation has {self.buffer_size} bytes"
            )
        address = self.buffer_ptrs[rank] + start
        return tensor_at(address, sizes, dtype, self._shared.blocks[self.rank].device, self._shared)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor of a rank at the place of the one that was given to `rendezvous`."""
        return self.get_buffer(peer, sizes, dtype, self.offset // dtype.itemsize)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """Return the signal pad of a rank, or a part of it."""
        element = torch.uint32 if dtype is None else dtype
        sizes = sizes or (SIGNAL_PAD_BYTES // element.itemsize - storage_offset,)
        address = self.signal_pad_ptrs[rank] + storage_offset * element.itemsize
        return tensor_at(address, sizes, element, self._shared.blocks[self.rank].device, self._shared)

    # --- signals

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait until all ranks have come to the barrier of a channel."""
        streams.finish_current()
        key = (self._group.key, "symmetric barrier", channel)
        worlds.world().meet(key, self._group.members, f"barrier(channel={channel})", None, lambda _: None)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Raise the signal of this rank at another one, once the last was taken."""
        streams.finish_current()
        signal = self._signal(dst_rank, self.rank, channel)
        self._until(f"put_signal(dst_rank={dst_rank}, channel={channel})", dst_rank, signal, 0)
        self._shared.points[ctypes.addressof(signal)] = checked.point()
        self._set(signal, 1)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for the signal of another rank, and take it."""
        streams.finish_current()
        signal = self._signal(self.rank, src_rank, channel)
        self._until(f"wait_signal(src_rank={src_rank}, channel={channel})", src_rank, signal, 1)
        checked.after(self._shared.points.get(ctypes.addressof(signal)))
        self._set(signal, 0)

    def _signal(self, at: int, source: int, channel: int) -> ctypes.c_uint32:
        place = 4 * (channel * self.world_size + source)
        if not 0 <= place < SIGNAL_PAD_BYTES:
            most = SIGNAL_PAD_BYTES // 4 // self.world_size
            raise RuntimeError(f"channel {channel}: a signal pad has {most} channels for {self.world_size} ranks")
        return ctypes.c_uint32.from_address(self.signal_pad_ptrs[at] + place)

    def _until(self, what: str, other: int, signal: ctypes.c_uint32, value: int) -> None:
        world = worlds.world()
        world.wait_until(what, lambda: signal.value == value, lambda: [self._group.members[other]])

    def _set(self, signal: ctypes.c_uint32, value: int) -> None:
        world = worlds.world()
        with world.changed:
            signal.value = value
            world.changed.notify_all()


def _agree(blocks: Mapping[int, Block]) -> _Rendezvous:
    """Compare the allocations of all ranks, and give each a signal pad."""
    by_size: dict[int, list[int]] = {}
    for rank, block in blocks.items():
        by_size.setdefault(block.size, []).append(rank)
    if len(by_size) > 1:
        said = ", ".join(f"{size} bytes on rank {', '.join(map(str, ranks))}" for size, ranks in by_size.items())
        raise RuntimeError(f"rendezvous() of allocations that differ in size: {said}")
    ordered = list(blocks.values())
    pads = [heap().allocate(block.device, SIGNAL_PAD_BYTES) for block in ordered]
    tables = [heap().allocate(block.device, 16 * len(ordered)) for block in ordered]
    return _Rendezvous(ordered, pads, tables)


def group_of(group: str | ThreadGroup | None) -> ThreadGroup:
    """Return a group by its name; None: of all ranks."""
    if group is None:
        return cast("ThreadGroup", distributed_c10d._get_default_group())
    if isinstance(group, str):
        return cast("ThreadGroup", distributed_c10d._resolve_process_group(group))
    return group


def serve() -> None:
    """Put the handle's class where torch has its own."""
    module: ModuleType = torch.distributed._symmetric_memory
    names = {"_SymmetricMemory": SymmetricMemory}

    def rendezvous(tensor: torch.Tensor, group: str | ThreadGroup | None = None) -> SymmetricMemory:
        """Return the handle of a tensor that each rank of the group has allocated with `empty`."""
        return SymmetricMemory.rendezvous(tensor, group)

    module.__dict__.update(names, rendezvous=rendezvous, _should_use_implicit_mempool=lambda: False)
    torch._C._distributed_c10d.__dict__.update(names)
