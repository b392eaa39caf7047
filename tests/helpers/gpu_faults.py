"""A contract for a GPU: twenty good configs, and five that the GPU does not survive, or has no room for."""

from __future__ import annotations

import torch
from cutlass._mlir.dialects import llvm  # pyright: ignore[reportMissingImports]

import kiln.cute as cute
from kiln import Float32, Int32, const_expr, dsl_user_op, range_constexpr

STATUSES = {
    "hangs": "timeout",  # first, so that it is the first job of its worker: a later one is tried twice
    "illegal": "device_error",
    "misaligned": "device_error",
    "traps": "device_error",
    "too large": "oom",
}
GOOD = [(threads, each) for threads in (64, 128, 256, 512, 1024) for each in (1, 2, 4, 8)]
configs = [{"threads": 64, "each": 1, "fault": fault} for fault in STATUSES]
configs += [{"threads": threads, "each": each, "fault": ""} for threads, each in GOOD]
arch = "sm_80+"


def get_inputs(n=1 << 22):
    return [torch.randn(n, device="cuda")]


def reference_fn(x):
    return x + x


def flops_bytes(n):
    return n, 8 * n


@dsl_user_op
def trap(*, loc=None, ip=None):
    llvm.inline_asm(None, [], "trap;", "", has_side_effects=True, loc=loc, ip=ip)


@cute.kernel
def double_of(x: cute.Tensor, out: cute.Tensor, threads: cute.Constexpr, each: cute.Constexpr, fault: cute.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    for step in range_constexpr(each):
        at = (block * each + step) * threads + thread
        out[at] = x[at] + x[at]
        if const_expr(fault == "hangs"):
            while x[at] == x[at]:
                out[at] = x[at]
        if const_expr(fault == "illegal"):
            out[at + Int32(1 << 30)] = x[at]
        if const_expr(fault == "misaligned"):
            odd = cute.make_ptr(Float32, out.iterator.toint() + 2, cute.AddressSpace.gmem, assumed_align=4)
            cute.make_tensor(odd, cute.make_layout(8))[0] = x[at]
        if const_expr(fault == "traps"):
            trap()


@cute.jit
def double(x: cute.Tensor, out: cute.Tensor, threads: cute.Constexpr, each: cute.Constexpr, fault: cute.Constexpr):
    blocks = cute.size(x) // (threads * each)
    double_of(x, out, threads, each, fault).launch(grid=(blocks, 1, 1), block=(threads, 1, 1))


def kernel_fn(x, config=None):
    threads, each, fault = config.values()
    if fault == "too large":
        return torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(x)
    double(x, out, threads, each, fault)
    return out
