"""Matrix products of a warp that tests on several targets make, with fragments written down as the PTX manual does."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.mlir import ir


def vector_of(values, kind):
    type_ = ir.VectorType.get([len(values)], kind.mlir_type)
    return tracing.emit_value("vector.from_elements", type_, [v.ir_value() for v in values])


def elements_of(vector, kind):
    return [
        kind._make(
            tracing.emit_value(
                "vector.extract", kind.mlir_type, (vector,), {"static_position": ir.DenseI64ArrayAttr.get([n])}
            )
        )
        for n in range(vector.type.shape[0])
    ]


def shared(count: int, kind=cute.Int32, alignment=16):
    return cute.make_tensor(arch.alloc_smem(kind, count, alignment), cute.make_layout(count))


# --- the manual's fragments: (row, column) of the elements of each lane -----------------------------------------------


def a_places(kind: str, k: int, lane: int) -> list[tuple[int, int]]:
    group, thread = lane >> 2, lane % 4
    if kind == "f64":  # m8n8k4
        return [(group, thread)]
    if kind == "tf32" and k == 4:
        return [(group, thread), (group + 8, thread)]
    if kind == "tf32":
        return [(group, thread), (group + 8, thread), (group, thread + 4), (group + 8, thread + 4)]
    if kind in ("f16", "bf16") and k == 8:
        return [(group if i < 2 else group + 8, thread * 2 + (i & 1)) for i in range(4)]
    if kind in ("f16", "bf16"):
        return [
            (group if i < 2 or 4 <= i < 6 else group + 8, thread * 2 + (i & 1) + (0 if i < 4 else 8)) for i in range(8)
        ]
    if k == 16:  # 8 bits
        return [(group if i < 4 else group + 8, thread * 4 + (i & 3)) for i in range(8)]
    return [
        (group if i < 4 or 8 <= i < 12 else group + 8, thread * 4 + (i & 3) + (0 if i < 8 else 16)) for i in range(16)
    ]


def b_places(kind: str, k: int, lane: int) -> list[tuple[int, int]]:
    group, thread = lane >> 2, lane % 4
    if kind == "f64" or (kind == "tf32" and k == 4):
        return [(thread, group)]
    if kind == "tf32":
        return [(thread, group), (thread + 4, group)]
    if kind in ("f16", "bf16"):
        return [(thread * 2 + (i & 1) + (0 if i < 2 else 8), group) for i in range(k // 4)]
    return [(thread * 4 + (i & 3) + (0 if i < 4 else 16), group) for i in range(k // 4)]


def c_places(kind: str, lane: int) -> list[tuple[int, int]]:
    group, thread = lane >> 2, lane % 4
    if kind == "f64":
        return [(group, thread * 2 + i) for i in range(2)]
    return [(group if i < 2 else group + 8, thread * 2 + (i & 1)) for i in range(4)]


NUMPY = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f64": np.float64, "s8": np.int8, "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32, "i32": np.int32,
}  # fmt: skip
CASES = [
    ("f16", "f16", 8, "f32"), ("f16", "f16", 16, "f32"), ("f16", "f16", 8, "f16"), ("f16", "f16", 16, "f16"),
    ("bf16", "bf16", 8, "f32"), ("bf16", "bf16", 16, "f32"), ("tf32", "tf32", 4, "f32"), ("tf32", "tf32", 8, "f32"),
    ("f64", "f64", 4, "f64"), ("s8", "s8", 16, "i32"), ("s8", "s8", 32, "i32"), ("u8", "u8", 32, "i32"),
    ("s8", "u8", 32, "i32"), ("u8", "s8", 16, "i32"), ("e4m3", "e4m3", 32, "f32"), ("e5m2", "e5m2", 32, "f32"),
    ("e4m3", "e5m2", 32, "f32"), ("e4m3", "e4m3", 32, "f16"), ("e4m3", "e4m3", 16, "f32"), ("e5m2", "e4m3", 16, "f16"),
]  # fmt: skip


def mma_kernel(a_kind: str, b_kind: str, k: int, d_kind: str):
    m = 8 if a_kind == "f64" else 16
    register = cute.Float64 if a_kind == "f64" else cute.Int32
    element = {"f32": cute.Float32, "f16": cute.Float16, "i32": cute.Int32, "f64": cute.Float64}[d_kind]
    size = 64 if a_kind == "f64" else 32
    bits = np.dtype(NUMPY[a_kind]).itemsize * 8
    counts = [m * k * bits // 32 // size, 8 * k * bits // 32 // size, m * 8 // 32]

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        left = vector_of([a[t * counts[0] + n] for n in range(counts[0])], register)
        right = vector_of([b[t * counts[1] + n] for n in range(counts[1])], register)
        start = vector_of([c[t * counts[2] + n] for n in range(counts[2])], element)
        made = nvgpu.mma.mma_sync((m, 8, k), a_kind, b_kind, left, right, start)
        for n, value in enumerate(elements_of(made, element)):
            out[t * counts[2] + n] = value

    return kernel, m


def spread(matrix: np.ndarray, places, warps: int, register) -> np.ndarray:
    """Fragments of all lanes, as registers."""
    parts = [np.array([matrix[w][p] for p in places(lane)]) for w in range(warps) for lane in range(32)]
    return np.concatenate(parts).view(register) if register else np.concatenate(parts)


def random_matrix(kind: str, shape, rng) -> np.ndarray:
    if kind in ("s8", "u8"):
        info = np.iinfo(NUMPY[kind])
        return rng.integers(info.min, info.max + 1, shape).astype(NUMPY[kind])
    if kind == "i32":
        return rng.integers(-1000, 1000, shape).astype(np.int32)
    made = rng.standard_normal(shape).astype(NUMPY[kind])
    if kind == "tf32":
        made = (made.view(np.uint32) & 0xFFFFE000).view(np.float32)
    return made
