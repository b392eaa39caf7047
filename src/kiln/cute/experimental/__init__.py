"""Kernels in which buffers, pipelines, tensor maps, tensor memory and predicates are the compiler's work.

Its interface may still change. See docs/experimental.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import host_runtime as host_runtime
    from . import iket as iket
    from .buffers import allocate as allocate
    from .collectives import dot as dot
    from .collectives import dot_block_scaled as dot_block_scaled
    from .collectives import epilogue_tma_store as epilogue_tma_store
    from .collectives import mainloop_mma as mainloop_mma
    from .collectives import make_t2r_rmem_layout as make_t2r_rmem_layout
    from .collectives import make_tmem_layout_acc as make_tmem_layout_acc
    from .copies import copy as copy
    from .copies import partition as partition
    from .copies import partition_and_copy as partition_and_copy
    from .operation_types import OperationTypeEnum as OperationTypeEnum
    from .pipelines import TMAStorePipeline as TMAStorePipeline
    from .pipelines import TMAToUMMAPipeline as TMAToUMMAPipeline
    from .pipelines import UMMAtoAsyncPipeline as UMMAtoAsyncPipeline
    from .pipelines import get_mbarrier as get_mbarrier
    from .pipelines import pipeline_advance_iterator as pipeline_advance_iterator
    from .program import compile as compile
    from .program import jit as jit
    from .program import kernel as kernel
    from .tma import get_cta_v_map_ab as get_cta_v_map_ab
    from .tma import get_cta_v_map_c as get_cta_v_map_c
    from .tma import tma_load as tma_load
    from .tma import tma_load_multicast as tma_load_multicast
    from .tma import tma_store as tma_store

_PLACES = {
    "allocate": ".buffers",
    "OperationTypeEnum": ".operation_types",
    **dict.fromkeys(("copy", "partition", "partition_and_copy"), ".copies"),
    **dict.fromkeys(("compile", "jit", "kernel"), ".program"),
    **dict.fromkeys(("get_cta_v_map_ab", "get_cta_v_map_c", "tma_load", "tma_load_multicast", "tma_store"), ".tma"),
    **dict.fromkeys(
        ("TMAStorePipeline", "TMAToUMMAPipeline", "UMMAtoAsyncPipeline", "get_mbarrier", "pipeline_advance_iterator"),
        ".pipelines",
    ),
    **dict.fromkeys(
        (
            "dot",
            "dot_block_scaled",
            "epilogue_tma_store",
            "mainloop_mma",
            "make_t2r_rmem_layout",
            "make_tmem_layout_acc",
        ),
        ".collectives",
    ),
}
if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, ("host_runtime", "iket"))
