"""Random tensor maps, made by hand and by TMA atoms, and read in a kernel; their bytes by the driver's encoder."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import kiln
from kiln import cute
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.nvgpu.tma_atom import tma_trait
from kiln.cute.tensor.pointer import Pointer
from kiln.experimental import cuda

TYPES = {
    kiln.Float16: ("float16", 6), kiln.BFloat16: ("bfloat16", 9), kiln.Float32: ("float32", 7), kiln.Uint8: ("uint8", 0),
    kiln.Int32: ("int32", 3), kiln.Float8E4M3FN: ("float8_e4m3fn", 0),
}  # fmt: skip
"""The name in torch, and the driver's number, of each element type."""
SPANS = {"none": 0, "s32b": 32, "s64b": 64, "s128b": 128}
ATOMS = {"s32b": "K_SW32", "s64b": "K_SW64", "s128b": "K_SW128"}


@dataclass(frozen=True)
class MapCase:
    """A tensor of 2 or 3 modes, the last contiguous (of 3: the second), and the box of a tile of its first two."""

    dtype: Any
    extents: tuple[int, ...]
    pitch: int
    """Elements from one row to the next."""
    box: tuple[int, int]
    swizzle: str
    promotion: str
    fill: str

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the modes in elements."""
        return (self.pitch, 1, self.pitch * self.extents[0])[: len(self.extents)]

    @property
    def elements(self) -> int:
        """The elements of the memory behind it."""
        return self.pitch * self.extents[0] * (self.extents[2] if len(self.extents) == 3 else 1)

    def driver(self, address: int) -> bytes:
        """Return the map that the driver encodes."""
        rank, size = len(self.extents), self.dtype.width // 8
        order = (1, 0, 2)[:rank]
        library = ctypes.CDLL("libcuda.so.1")
        map_ = (ctypes.c_uint64 * 32)()
        start = (-ctypes.addressof(map_) % 64) // 8
        dims = (ctypes.c_uint64 * rank)(*(self.extents[m] for m in order))
        pitches = (ctypes.c_uint64 * (rank - 1))(*(self.strides[m] * size for m in order[1:]))
        box = (ctypes.c_uint32 * rank)(*((*self.box, 1)[m] for m in order))
        steps = (ctypes.c_uint32 * rank)(*(1,) * rank)
        numbers = (
            list(SPANS).index(self.swizzle), ["none", "l2_64b", "l2_128b", "l2_256b"].index(self.promotion),
            int(self.fill == "nan"),
        )  # fmt: skip
        status = library.cuTensorMapEncodeTiled(
            ctypes.byref(map_, 8 * start), TYPES[self.dtype][1], rank, ctypes.c_void_p(address), dims, pitches, box,
            steps, 0, *numbers,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"cuTensorMapEncodeTiled returned {status} for {self}")
        return bytes(map_)[8 * start : 8 * start + 128]


def random_case(seed: int) -> MapCase:
    """Return a tensor map that hardware and atoms can describe."""
    choose = random.Random(seed)
    dtype, swizzle = choose.choice(list(TYPES)), choose.choice(list(SPANS))
    unit = 16 // (dtype.width // 8)
    columns = SPANS[swizzle] // 16 * unit if swizzle != "none" else unit * choose.randint(1, 8)
    extents = [8 * choose.randint(1, 9), unit * choose.randint(8, 20), choose.randint(2, 5)][: choose.choice((2, 3))]
    pitch = extents[1] + unit * choose.choice((0, 0, 3))
    fill = choose.choice(("none", "nan")) if dtype.is_float and dtype.width > 8 else "none"
    promotion = choose.choice(("none", "l2_64b", "l2_128b", "l2_256b"))
    return MapCase(dtype, tuple(extents), pitch, (8 * choose.randint(1, 8), columns), swizzle, promotion, fill)


@cute.kernel
def read_maps(
    first: kiln.GridConstant[cuda.TensorMap], second: kiln.GridConstant[cuda.TensorMap],
    third: kiln.GridConstant[cuda.TensorMap], atom: cute.CopyAtom, out: cute.Tensor,
):  # fmt: skip
    tx = cute.arch.thread_idx()[0]
    own = Pointer(tma_trait(atom, "test").address(), kiln.Int64, kiln.AddressSpace.generic).raw_ptr()
    out[0, tx], out[1, tx], out[2, tx], out[3, tx] = (
        first.get_ptr()[tx], second.get_ptr()[tx], third.get_ptr()[tx], own[tx],
    )  # fmt: skip


def program(case: MapCase) -> Any:
    """Return `f(memory, out)`, which writes four maps of the case, of 16 words each: by hand from extents and from a
    view, as atoms make them; by an atom; in this order by hand with the case's promotion and fill first."""

    @cute.jit
    def f(memory: cute.Tensor, out: cute.Tensor):
        x = cute.make_tensor(memory.iterator, cute.make_layout(case.extents, stride=case.strides))
        if kiln.const_expr(case.swizzle == "none"):
            layout = cute.make_layout(case.box, stride=(case.box[1], 1))
        else:
            kind = getattr(warpgroup.SmemLayoutAtomKind, ATOMS[case.swizzle])
            layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, case.dtype), case.box, (0, 1))
        atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, case.box)
        size, rank = case.dtype.width // 8, len(case.extents)
        order = (1, 0, 2)[:rank]
        box = (*case.box, 1)[:rank]
        given = (
            x.iterator.toint(), case.dtype, [case.extents[m] for m in order],
            [case.strides[m] * size // 16 for m in order[1:]], [box[m] for m in order],
        )  # fmt: skip
        how = {"l2_promotion": case.promotion, "oob_fill": case.fill}
        whole = cuda.create_tensor_map_tiled(*given, swizzle=case.swizzle, **how)
        plain = cuda.create_tensor_map_tiled(*given, swizzle=case.swizzle)
        view = cuda.create_tensor_map_tiled_from_view(x, box, stride_order=order, swizzle=case.swizzle)
        read_maps(whole, plain, view, atom, out).launch(grid=1, block=16)

    return f
