"""Operations that every processor has, and the enumerations that copies share."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import DSLUserCodeTypeError, error
from ...base_dsl.typing import BFloat16, Float, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64
from ..atom import CopyOp, CopyTrait, UniversalCopyTrait
from ..int_tuple import product
from ..layout import make_layout
from ..mma import MmaOp, RegisterMmaTrait
from ..pointer import load_element, store_vector
from ..tensor import TracedTensor

if TYPE_CHECKING:
    from ...mlir import ir

__all__ = [
    "CacheEvictionPriority", "CopyG2ROp", "CopyR2GOp", "CopyR2SOp", "CopyS2ROp", "CopyUniversalOp", "LoadCacheMode",
    "MemoryOrder", "MemoryScope", "MmaUniversalOp", "OperandMajorMode",
]  # fmt: skip


class CacheEvictionPriority(enum.Enum):
    """How long a line should stay in the cache."""

    EVICT_NORMAL = enum.auto()
    EVICT_FIRST = enum.auto()
    EVICT_LAST = enum.auto()
    EVICT_UNCHANGED = enum.auto()
    NO_ALLOCATE = enum.auto()


class LoadCacheMode(enum.Enum):
    """At which level a load is cached."""

    ALWAYS = enum.auto()
    GLOBAL = enum.auto()
    STREAMING = enum.auto()
    LAST_USE = enum.auto()
    NONE = enum.auto()


class MemoryOrder(enum.Enum):
    """The memory order of an access."""

    WEAK = enum.auto()
    RELAXED = enum.auto()
    ACQUIRE = enum.auto()
    RELEASE = enum.auto()
    ACQ_REL = enum.auto()
    SC = enum.auto()
    MMIO = enum.auto()
    CONSTANT = enum.auto()
    VOLATILE = enum.auto()


class MemoryScope(enum.Enum):
    """The threads for which the order of an access holds."""

    CTA = enum.auto()
    CLUSTER = enum.auto()
    GPU = enum.auto()
    SYS = enum.auto()


class OperandMajorMode(enum.Enum):
    """Along which mode an operand of an MMA is contiguous."""

    MN = enum.auto()
    K = enum.auto()


class CopyUniversalOp(CopyOp):
    """Loads and stores, of any memory, by one thread."""

    def make_trait(
        self,
        copy_internal_type: Any,
        *,
        num_bits_per_copy: int = 0,
        memory_order: Any = MemoryOrder.WEAK,
        memory_scope: Any = MemoryScope.CTA,
        l1c_evict_priority: Any = CacheEvictionPriority.EVICT_NORMAL,
        invariant: bool = False,
        **_: Any,
    ) -> CopyTrait:
        return UniversalCopyTrait(copy_internal_type, num_bits_per_copy)


class CopyG2ROp(CopyUniversalOp):
    """Loads of global memory into registers."""


class CopyR2GOp(CopyUniversalOp):
    """Stores of registers to global memory."""


class CopyS2ROp(CopyUniversalOp):
    """Loads of shared memory into registers."""


class CopyR2SOp(CopyUniversalOp):
    """Stores of registers to shared memory."""


class MmaUniversalOp(MmaOp):
    """One multiply-add of one thread, rounded once."""

    def __init__(self, abacc_dtype: Any) -> None:
        if abacc_dtype not in (Float16, BFloat16, Float32, Float64, Int32, Int64, Uint32, Uint64):
            raise error(
                DSLUserCodeTypeError,
                f"MmaUniversalOp of {getattr(abacc_dtype, '__name__', abacc_dtype)}",
                hint="Float16, BFloat16, Float32, Float64, or integers of 32 or 64 bits",
            )
        self.abacc_dtype = abacc_dtype

    def make_trait(self, **_: Any) -> UniversalMmaTrait:
        return UniversalMmaTrait(self.abacc_dtype)


class UniversalMmaTrait(RegisterMmaTrait):
    """D = A * B + C of single numbers."""

    def __init__(self, dtype: Any) -> None:
        layout = make_layout((1, 1), stride=(0, 0))
        super().__init__((1, 1, 1), make_layout(1), (layout, layout, layout), (dtype, dtype, dtype))
        self.dtype = dtype

    def load(self, operand: str, tensor: TracedTensor) -> ir.Value:
        if tensor.element_type is not self.dtype or product(tensor.shape) != 1:
            raise error(
                DSLUserCodeTypeError,
                f"MmaUniversalOp({self.dtype.__name__}) takes one {self.dtype.__name__} of {operand}, got {tensor}",
            )
        return load_element(tensor.iterator, tensor.offset_layout(0)).ir_value()

    def store(self, tensor: TracedTensor, value: ir.Value) -> None:
        store_vector(tensor.iterator, tensor.offset_layout(0), value)

    def multiply(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        if issubclass(self.dtype, Float):
            return tracing.emit_value("math.fma", c.type, (a, b, c))
        return tracing.emit_value("arith.addi", c.type, (tracing.emit_value("arith.muli", c.type, (a, b)), c))
