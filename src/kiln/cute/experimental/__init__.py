"""Kernels in which buffers, pipelines, tensor maps, tensor memory and predicates are the compiler's work.

Its interface may still change. See docs/experimental.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import iket as iket
    from .copies import allocate as allocate
    from .copies import copy as copy
    from .copies import partition as partition
    from .program import compile as compile
    from .program import jit as jit
    from .program import kernel as kernel

_PLACES = {
    "allocate": ".buffers",
    "OperationTypeEnum": ".operation_types",
    **dict.fromkeys(("copy", "partition", "partition_and_copy"), ".copies"),
    **dict.fromkeys(("compile", "jit", "kernel"), ".program"),
    **dict.fromkeys(("get_cta_v_map_ab", "get_cta_v_map_c", "tma_load", "tma_load_multicast", "tma_store"), ".tma"),
    **dict.fromkeys(
        (
            "TMAStorePipeline", "TMAToUMMAPipeline", "UMMAtoAsyncPipeline", "get_mbarrier",
            "pipeline_advance_iterator",
        ),
        ".pipelines",
    ),
    **dict.fromkeys(
        (
            "dot", "dot_block_scaled", "epilogue_tma_store", "mainloop_mma", "make_t2r_rmem_layout",
            "make_tmem_layout_acc",
        ),
        ".collectives",
    ),
}  # fmt: skip
__getattr__ = lazy.names(__name__, _PLACES, ("host_runtime", "iket"))
