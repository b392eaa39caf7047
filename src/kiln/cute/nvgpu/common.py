"""Operations that every processor has, and enumerations that operations share."""

from __future__ import annotations

import enum
import warnings
from typing import TYPE_CHECKING, Any

from ..._support import lazy
from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import DSLOptimizationWarning, type_error, user_frame
from ...base_dsl.typing import BFloat16, Float, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64
from ..atoms.access_modifiers import (
    CacheEvictionPriority,
    L2PrefetchSize,
    LoadCacheMode,
    MemoryOrder,
    MemoryScope,
    StoreCacheMode,
    member_of,
    modifiers_of,
)
from ..atoms.atom import CopyOp, CopyTrait
from ..atoms.copying import transfer
from ..atoms.mma import MmaOp, RegisterMmaTrait
from ..layout.int_tuple import product
from ..layout.layout import make_layout
from ..tensor.pointer import element_bits, store_vector
from ..tensor.tensor import TracedTensor
from ..tensor.vector_access import WIDEST_ACCESS
from .access import say_alignment

if TYPE_CHECKING:
    from ..tensor.pointer import Pointer
    from ..tensor.vector_access import Registers

__dir__ = lazy.listing(__name__)
__all__ = [
    "CacheEvictionPriority",
    "CopyG2ROp",
    "CopyG2RTrait",
    "CopyR2GOp",
    "CopyR2GTrait",
    "CopyR2SOp",
    "CopyR2STrait",
    "CopyS2ROp",
    "CopyS2RTrait",
    "CopyUniversalOp",
    "CopyUniversalTrait",
    "CtaGroup",
    "L2PrefetchSize",
    "LoadCacheMode",
    "MemoryOrder",
    "MemoryScope",
    "MmaUniversalOp",
    "MmaUniversalTrait",
    "OperandMajorMode",
    "OutputMajorMode",
    "SharedSpace",
    "StoreCacheMode",
]


class OperandMajorMode(enum.Enum):
    """The mode along which an operand of an MMA is contiguous."""

    MN = "mn"
    K = "k"


class OutputMajorMode(enum.Enum):
    """The mode along which the output D (M, N) of an MMA is contiguous."""

    M = "m"
    N = "n"


class SharedSpace(enum.Enum):
    """Whose shared memory an address is in. Pointers say it themselves: `shared_space` of a copy changes nothing."""

    CTA = enum.auto()
    CLUSTER = enum.auto()


class CtaGroup(enum.Enum):
    """The number of CTAs that execute an operation together."""

    ONE = 1
    TWO = 2


class CopyUniversalOp(CopyOp):
    """Loads and stores of any memory by one thread, with a memory order and scope, or hints for the caches."""

    def make_trait(
        self,
        copy_internal_type: object,
        *,
        num_bits_per_copy: int = 0,
        memory_order: object = MemoryOrder.WEAK,
        memory_scope: object = MemoryScope.CTA,
        l1c_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
        invariant: bool = False,
        l2_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
    ) -> CopyTrait:
        modifiers = modifiers_of(memory_order, memory_scope, l1c_evict_priority, invariant, l2_evict_priority)
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy, modifiers)


class UniversalCopyTrait(CopyTrait):
    """Loads and stores of one thread, `bits` wide; 0: as wide as layouts and alignment allow.

    `modifiers` are those of PTX for its loads and for its stores.
    """

    def __init__(self, value_type: Any, bits: int, modifiers: tuple[str, str] = ("", "")) -> None:
        self.modifiers = modifiers
        width = element_bits(value_type)
        if bits and bits % width:
            raise type_error(f"num_bits_per_copy={bits} is not a multiple of the {width} bits of {value_type.__name__}")
        self.bits = bits
        self.values: int = bits // width if bits else 1
        layout = make_layout((1, self.values), stride=(0, 1 if self.values > 1 else 0))
        super().__init__(value_type, make_layout(1), layout, layout)

    def copy(self, src: object, dst: object, pred: object) -> None:
        widest = min(WIDEST_ACCESS, self.bits // 8) if self.bits else WIDEST_ACCESS
        count = product(dst.shape) if isinstance(dst, TracedTensor) else 0
        if isinstance(count, int) and count % self.values:
            raise type_error(
                f"{count} elements are copied with an atom of {self.values} values (num_bits_per_copy={self.bits})",
                "mode 0 of source and destination holds the values of the atom, or a multiple",
            )
        narrowest = transfer(src, dst, pred, self.values, widest, self.modifiers)
        if any(self.modifiers):
            widest = 0 if "mmio" in self.modifiers[0] else min(widest, 16)
        if narrowest * element_bits(self.value_type) < widest * 8 and self.bits:
            _warn_narrow(self.bits, narrowest * element_bits(self.value_type), src, dst)


def _warn_narrow(asked: int, got: int, src: object, dst: object) -> None:
    frame = user_frame()
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)
    warnings.warn_explicit(
        f"a copy with num_bits_per_copy={asked} is done with accesses of {got} bits: more is not known to be contiguous "
        f"and aligned, from {src} to {dst}; {say_alignment(asked // 8)}",
        DSLOptimizationWarning,
        *place,
    )


CopyUniversalTrait = UniversalCopyTrait
CopyG2RTrait = CopyR2GTrait = CopyS2RTrait = CopyR2STrait = UniversalCopyTrait


class CopyG2ROp(CopyUniversalOp):
    """Loads of global memory into registers, with a cache mode of their own and a prefetch into the L2 cache."""

    def make_trait(
        self,
        copy_internal_type: object,
        *,
        num_bits_per_copy: int = 0,
        memory_order: object = MemoryOrder.WEAK,
        memory_scope: object = MemoryScope.CTA,
        l2_prefetch_size: object = L2PrefetchSize.NONE,
        l1c_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
        load_cache_mode: object = LoadCacheMode.ALWAYS,
        shared_space: object = SharedSpace.CTA,
        invariant: bool = False,
        l2_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
    ) -> CopyTrait:
        member_of("shared_space", shared_space, SharedSpace)
        modifiers = modifiers_of(
            memory_order,
            memory_scope,
            l1c_evict_priority,
            invariant,
            l2_evict_priority,
            loads=load_cache_mode,
            prefetch=l2_prefetch_size,
        )
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy, modifiers)


class CopyR2GOp(CopyUniversalOp):
    """Stores of registers to global memory, with a cache mode of their own."""

    def make_trait(
        self,
        copy_internal_type: object,
        *,
        num_bits_per_copy: int = 0,
        memory_order: object = MemoryOrder.WEAK,
        memory_scope: object = MemoryScope.CTA,
        l1c_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
        store_cache_mode: object = StoreCacheMode.WRITE_BACK,
        shared_space: object = SharedSpace.CTA,
        invariant: bool = False,
        l2_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
    ) -> CopyTrait:
        member_of("shared_space", shared_space, SharedSpace)
        modifiers = modifiers_of(
            memory_order, memory_scope, l1c_evict_priority, invariant, l2_evict_priority, stores=store_cache_mode
        )
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy, modifiers)


class _SharedCopyOp(CopyUniversalOp):
    def make_trait(
        self,
        copy_internal_type: object,
        *,
        num_bits_per_copy: int = 0,
        memory_order: object = MemoryOrder.WEAK,
        memory_scope: object = MemoryScope.CTA,
        shared_space: object = SharedSpace.CTA,
        l1c_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
        invariant: bool = False,
        l2_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
    ) -> CopyTrait:
        member_of("shared_space", shared_space, SharedSpace)
        modifiers = modifiers_of(memory_order, memory_scope, l1c_evict_priority, invariant, l2_evict_priority)
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy, modifiers)


class CopyS2ROp(_SharedCopyOp):
    """Loads of shared memory into registers."""


class CopyR2SOp(_SharedCopyOp):
    """Stores of registers to shared memory."""


class MmaUniversalOp(MmaOp):
    """One multiply-add of one thread, rounded once."""

    def __init__(self, abacc_dtype: Any) -> None:
        if abacc_dtype not in (Float16, BFloat16, Float32, Float64, Int32, Int64, Uint32, Uint64):
            raise type_error(
                f"MmaUniversalOp does not take {getattr(abacc_dtype, '__name__', abacc_dtype)}",
                "Float16, BFloat16, Float32, Float64, or integers of 32 or 64 bits",
            )
        self.abacc_dtype = abacc_dtype

    def make_trait(self) -> UniversalMmaTrait:
        return UniversalMmaTrait(self.abacc_dtype)


class UniversalMmaTrait(RegisterMmaTrait):
    """D = A * B + C of single numbers."""

    def __init__(self, dtype: Any) -> None:
        layout = make_layout((1, 1), stride=(0, 0))
        super().__init__((1, 1, 1), make_layout(1), (layout, layout, layout), (dtype, dtype, dtype))
        self.dtype = dtype

    def pointer_to(self, operand: str, tensor: TracedTensor) -> Pointer:
        if tensor.element_type is not self.dtype:
            raise type_error(
                f"MmaUniversalOp({self.dtype.__name__}) takes one {self.dtype.__name__} of {operand}, got {tensor}"
            )
        return super().pointer_to(operand, tensor)

    def load(self, operand: str, registers: Registers, call: int) -> ir.Value:
        return registers.pointer.element(registers.offsets[call]).ir_value()

    def store(self, registers: Registers, call: int, value: ir.Value) -> None:
        store_vector(registers.pointer, registers.offsets[call], value)

    def multiply(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        if issubclass(self.dtype, Float):
            return tracing.emit_value("math.fma", c.type, (a, b, c))
        return tracing.emit_value("arith.addi", c.type, (tracing.emit_value("arith.muli", c.type, (a, b)), c))


MmaUniversalTrait = UniversalMmaTrait
