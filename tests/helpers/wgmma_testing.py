"""Kernels of one product of a warpgroup, from an image of shared memory to registers; operands and what they are by numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions, wgmma
from kiln.hardware.mma_shapes import BITS

SUMS = {"f32": (cute.Float32, np.float32), "f16": (cute.Float16, np.float16), "s32": (cute.Int32, np.int32)}
SIZES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
B_AT = 16384
"""Where B starts in shared memory; A is at 0."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A product, and how its operands lie."""

    a_type: str
    b_type: str
    sums: str
    n: int
    a_major: str = "k"
    b_major: str = "k"
    swizzle: str = "128b"
    a_in_registers: bool = False

    @property
    def k(self) -> int:
        return 256 // BITS[self.a_type]

    def strides(self, major: str, rows: int) -> tuple[int, int]:
        """Leading and stride bytes of an operand that lies without gaps but for those that a swizzle's rows leave."""
        wide = {"none": 16, "128b": 128, "64b": 64, "32b": 32}[self.swizzle]
        if major == "k":
            return (rows * 16, 128) if self.swizzle == "none" else (16, 8 * wide)
        repeats = max(1, rows * 2 // wide)
        return (128 * repeats, 128) if self.swizzle == "none" else (8 * wide, 8 * wide * repeats)

    def descriptor(self, which: str) -> int:
        rows, major, at = (64, self.a_major, 0) if which == "a" else (self.n, self.b_major, B_AT)
        return definitions.matrix_descriptor(at, *self.strides(major, rows), self.swizzle)

    def image(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Shared memory with A (64 x k) and B (k x n), given as bits."""
        memory = np.zeros(65536 // a.itemsize, a.dtype)
        for which, matrix, major in (("a", a, self.a_major), ("b", b.T, self.b_major)):
            descriptor, bits = self.descriptor(which), BITS[self.a_type]
            for (row, k), value in np.ndenumerate(matrix):
                memory[definitions.operand_address(descriptor, major, bits, row, k) // a.itemsize] = value
        return memory.view(np.int32)


def operands(case: Case, spread_exponents: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random A and B as bits: any bits at all, or numbers about 1."""
    rng = np.random.default_rng(seed)
    made = []
    for kind, shape in ((case.a_type, (64, case.k)), (case.b_type, (case.k, case.n))):
        bits = BITS[kind]
        if spread_exponents or kind in ("s8", "u8"):
            made.append(rng.integers(0, 1 << bits, shape, dtype=np.uint64).astype(SIZES[bits]))
        elif kind == "f16":
            made.append(rng.standard_normal(shape).astype(np.float16).view(np.uint16))
        elif bits >= 16:
            made.append(
                (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> (32 - bits)).astype(SIZES[bits])
            )
        else:
            made.append(rng.integers(0, 0x70, shape).astype(np.uint8))
    return made[0], made[1]


def values(kind: str, bits: np.ndarray) -> np.ndarray:
    """The numbers that elements of A or B are."""
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return np.vectorize(lambda code: definitions.decode(kind, int(code)), otypes=[np.float64])(bits)


def spread(n: int, matrix: np.ndarray) -> np.ndarray:
    """What each thread holds of C or D."""
    places = [definitions.wgmma_c_places(n, t) for t in range(128)]
    return np.array([[matrix[place] for place in own] for own in places])


def spread_a(case: Case, matrix: np.ndarray) -> np.ndarray:
    """What each thread holds of A, as words."""
    places = [definitions.wgmma_a_places(case.k, BITS[case.a_type], t) for t in range(128)]
    return np.array([[matrix[place] for place in own] for own in places], matrix.dtype).view(np.int32)


def product_kernel(case: Case, accumulate: bool, repeats: int = 1) -> Any:
    """A kernel (image of shared memory, A's registers, C, D) that multiplies; C and D as threads hold them."""
    kind, _ = SUMS[case.sums]
    half = case.n // 2

    @cute.kernel
    def kernel(image: cute.Tensor, registers: cute.Tensor, c: cute.Tensor, d: cute.Tensor):
        smem = arch.alloc_smem(cute.Int32, 16384, 1024)
        words = cute.make_tensor(smem, cute.make_layout(16384))
        t = arch.thread_idx()[0]
        for i in range(cute.Int32(128)):
            words[i * 128 + t] = image[i * 128 + t]
        arch.fence_view_async_shared()
        arch.sync_threads()
        sums = cute.make_rmem_tensor(half, kind)
        held = cute.make_rmem_tensor(4, cute.Int32)
        for i in range(cute.Int32(half)):
            sums[i] = c[t, i]
        for i in range(4):
            held[i] = registers[t, i]
        a = held.iterator.ir_value()
        if not case.a_in_registers:
            a = wgmma.matrix_descriptor(smem.ir_value(), *case.strides(case.a_major, 64), case.swizzle)
        b = wgmma.matrix_descriptor((smem + B_AT // 4).ir_value(), *case.strides(case.b_major, case.n), case.swizzle)
        given = {"n": case.n, "k": case.k, "a_type": case.a_type, "b_type": case.b_type}
        wgmma.wgmma_fence()
        for _ in range(repeats):
            wgmma.wgmma(
                sums.iterator.ir_value(), a, b, cute.Boolean(accumulate).ir_value(), **given, a_major=case.a_major, b_major=case.b_major
            )  # fmt: skip
        wgmma.wgmma_commit()
        wgmma.wgmma_wait(0)
        for i in range(cute.Int32(half)):
            d[t, i] = sums[i]

    return kernel
