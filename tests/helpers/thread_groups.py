"""Blocks of threads of the CPU target's runtime, on records that Python makes."""

from __future__ import annotations

import ctypes

from kiln.targets.cpu.runtime import groups
from kiln.targets.cpu.runtime.records import BLOCK_BYTES, HEADER, WARP_BYTES, BlockRecord, FrameHeader, Sizes
from kiln.targets.host.call_context import Context

SMEM = 1024


class Group:
    """Blocks of threads that have just been started."""

    def __init__(self, block: tuple[int, int, int], blocks: int = 1, cluster: int = 1) -> None:
        threads = block[0] * block[1] * block[2]
        chunk = SMEM + BLOCK_BYTES + threads * HEADER + -(-threads // 32) * WARP_BYTES
        chunk_bits = (chunk - 1).bit_length()
        chunk = 1 << chunk_bits if cluster > 1 else chunk
        self.sizes = Sizes((blocks, 1, 1), block, (cluster, 1, 1), SMEM, chunk, chunk_bits, blocks)
        self.memory = (ctypes.c_uint8 * (chunk * blocks))()
        self.context, self.random = Context(), ctypes.c_uint64(1)
        random = ctypes.addressof(self.random)
        groups.initialize(self.context, self.memory, self.sizes, HEADER, 0, 1, 0, random)

    def block(self, rank: int = 0) -> BlockRecord:
        return BlockRecord.from_buffer(self.memory, rank * self.sizes.chunk + SMEM)

    def frame(self, thread: int, rank: int = 0) -> FrameHeader:
        return FrameHeader.from_buffer(self.memory, rank * self.sizes.chunk + SMEM + BLOCK_BYTES + thread * HEADER)

    def blocked(self, thread: int, rank: int = 0) -> bool:
        frame = self.frame(thread, rank)
        return ctypes.c_uint32.from_address(frame.wait_address).value & frame.wait_mask == frame.wait_value
