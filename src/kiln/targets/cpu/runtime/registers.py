"""`setmaxnreg`: warpgroups release registers, or wait until others have released as many as they ask for.

A kernel starts with as many registers per thread as fit an SM with the CTAs per SM that its launch asks for. These are
the pool: only registers that were released can be acquired. A warp that asks for what it got before changes nothing, and
waits for no other.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....hardware.limits import REGISTER_UNIT, REGISTERS, SET_REGISTERS
from ....native import Ptr, i32, i64, local, ref, u32
from ...host.reports import fault
from .records import WARPGROUP, FrameHeader
from .threads import ALL, COME_AGAIN, GO_ON, wait, waiting


@waiting.export
def set_registers(frame: Ptr[FrameHeader], count: u32, increases: i32, blocks: u32, site: i32, group_site: i32) -> i32:
    """Change the registers of a thread when its whole warpgroup has arrived; return whether to suspend and call
    again."""
    if frame.registers == count and frame.asking == 0:
        return GO_ON
    block = frame.block
    group = ref(frame.block.warpgroups)[frame.thread // WARPGROUP]
    threads = block.threads
    first = frame.thread // WARPGROUP * WARPGROUP
    at_start = min(u32(REGISTERS) // (threads * blocks) // REGISTER_UNIT * REGISTER_UNIT, u32(SET_REGISTERS[1]))
    if block.register_eighths == 0:
        block.register_eighths = (at_start * threads // 8) * 0x10001
    before = frame.registers if frame.registers != 0 else at_start
    if frame.asking == 0:
        frame.asking = 1
        frame.asks += 1
        group.asked += 1
        # how many a thread has at the start is the most that it can be: less than that may be an increase
        wrong = count < frame.registers if increases != 0 else count > before
        if wrong:
            index = block.index
            size = block.block_dim
            arguments = local(i64, 1)
            arguments[0] = before
            x = frame.thread % size[0]
            rest = frame.thread // size[0]
            fault(block.context, site, index[0], index[1], index[2], x, rest % size[1], rest // size[1], 1, arguments)
    if group.asked < frame.asks * min(u32(WARPGROUP), threads - first):
        wait(frame, ref(group).asked, ALL, group.asked, group_site)
        return COME_AGAIN
    if frame.asking == 1:
        frame.asking = 2
        total = (block.register_eighths >> 16) * 8 - before + count
        block.register_eighths = (block.register_eighths & 0xFFFF) | (total // 8) << 16
    if count > before + block.registers_free:
        wait(frame, ref(block).registers_free, ALL, block.registers_free, site)
        return COME_AGAIN
    block.registers_free += before - count
    frame.registers = count
    frame.asking = 0
    return GO_ON
