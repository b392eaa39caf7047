"""The tensor cores of sm_100 to sm_110: MMAs with accumulators in tensor memory, and copies of tensor memory."""

from __future__ import annotations

from typing import Any

from ...._support import lazy
from ....base_dsl.diagnostics import type_error
from ....base_dsl.typing import Int16
from ...arch.values import kernel_only, pointer
from ...deferred_dialects import nvgpu
from ..smem_layouts import make_smem_layout_atom, tile_to_mma_shape
from . import copy, descriptors, mma
from .copy import *
from .descriptors import *
from .mma import *
from .mma import CtaGroup
from .tensor_memory import find_tmem_tensor_col_offset

__dir__ = lazy.listing(__name__)
__all__ = ["commit", "find_tmem_tensor_col_offset", "make_smem_layout_atom", "tile_to_mma_shape"]
__all__ += copy.__all__
__all__ += descriptors.__all__
__all__ += mma.__all__


def commit(
    mbar_ptr: object, mask: object = None, cta_group: object = CtaGroup.ONE, *, loc: object = None, ip: object = None
) -> None:
    """Arrive at an mbarrier when the MMAs and copies that this thread issued before are complete. Needs sm_100a or
    later.

    One thread executes it, the one that issued them: `with cute.arch.elect_one():`.

    Args:
        mbar_ptr: the mbarrier in shared memory; it gets one arrival.
        mask: a bit for each CTA of the cluster whose mbarrier at the same offset gets the arrival; None for this CTA's.
        cta_group: `CtaGroup.ONE`, or `TWO` for MMAs of a CTA pair.
    """
    kernel_only("tcgen05.commit")
    if not isinstance(cta_group, CtaGroup):
        raise type_error(f"cta_group of tcgen05.commit is {cta_group!r}", "CtaGroup.ONE or CtaGroup.TWO")
    masks = () if mask is None else (Int16(mask).ir_value(),)
    place = pointer(mbar_ptr, "tcgen05.commit", "smem")
    nvgpu.tcgen05.tcgen05_commit(place, *masks, cta_group=cta_group.value)
