"""Kernels, written in Kiln: functions of arrays, a folder for each family of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from .dispatch.explaining import explain as explain
    from .dispatch.registry import Implementation as Implementation
    from .impl.attention.bwd.sm80_config import Sm80AttentionBackwardConfig as Sm80AttentionBackwardConfig
    from .impl.attention.bwd.sm90_config import Sm90AttentionBackwardConfig as Sm90AttentionBackwardConfig
    from .impl.attention.bwd.sm90_hd256_config import (
        Sm90AttentionBackwardHd256Config as Sm90AttentionBackwardHd256Config,
    )
    from .impl.attention.flash_attention import flash_attention as flash_attention
    from .impl.attention.flash_attention_backward import flash_attention_backward as flash_attention_backward
    from .impl.attention.fwd.sm80_config import Sm80AttentionConfig as Sm80AttentionConfig
    from .impl.attention.fwd.sm90_config import Sm90AttentionConfig as Sm90AttentionConfig
    from .impl.attention.paged_attention import paged_attention as paged_attention
    from .impl.cross_entropy.cross_entropy import cross_entropy as cross_entropy
    from .impl.cross_entropy.cross_entropy import cross_entropy_backward as cross_entropy_backward
    from .impl.elementwise.config import ElementwiseConfig as ElementwiseConfig
    from .impl.elementwise.elementwise import elementwise as elementwise
    from .impl.gemm.gemm import gemm as gemm
    from .impl.gemm.grouped_gemm import grouped_gemm as grouped_gemm
    from .impl.gemm.sm80_config import Sm80GemmConfig as Sm80GemmConfig
    from .impl.gemm.sm90_config import Sm90GemmConfig as Sm90GemmConfig
    from .impl.gemm.sm90_config import Sm90MixedInputConfig as Sm90MixedInputConfig
    from .impl.gemm.sm100_config import Sm100GemmConfig as Sm100GemmConfig
    from .impl.mla.mla_decode import mla_decode as mla_decode
    from .impl.mla.mla_prefill import mla_prefill as mla_prefill
    from .impl.mla.sm90_config import Sm90MlaConfig as Sm90MlaConfig
    from .impl.reduction.config import ReductionConfig as ReductionConfig
    from .impl.reduction.reductions import argmax as argmax
    from .impl.reduction.reductions import argmin as argmin
    from .impl.reduction.reductions import max as max
    from .impl.reduction.reductions import mean as mean
    from .impl.reduction.reductions import min as min
    from .impl.reduction.reductions import sum as sum
    from .impl.rope.config import RopeConfig as RopeConfig
    from .impl.rope.rotary_embedding import rotary_embedding as rotary_embedding
    from .impl.rowwise.backward import layer_norm_backward as layer_norm_backward
    from .impl.rowwise.backward import rms_norm_backward as rms_norm_backward
    from .impl.rowwise.backward import softmax_backward as softmax_backward
    from .impl.rowwise.config import RowwiseConfig as RowwiseConfig
    from .impl.rowwise.config import StreamingRowwiseConfig as StreamingRowwiseConfig
    from .impl.rowwise.fused_add_norm import fused_add_layer_norm as fused_add_layer_norm
    from .impl.rowwise.fused_add_norm import fused_add_layer_norm_backward as fused_add_layer_norm_backward
    from .impl.rowwise.fused_add_norm import fused_add_rms_norm as fused_add_rms_norm
    from .impl.rowwise.fused_add_norm import fused_add_rms_norm_backward as fused_add_rms_norm_backward
    from .impl.rowwise.gated_activation import geglu as geglu
    from .impl.rowwise.gated_activation import geglu_backward as geglu_backward
    from .impl.rowwise.gated_activation import swiglu as swiglu
    from .impl.rowwise.gated_activation import swiglu_backward as swiglu_backward
    from .impl.rowwise.quantize import quantize as quantize
    from .impl.rowwise.softmax_and_norms import layer_norm as layer_norm
    from .impl.rowwise.softmax_and_norms import rms_norm as rms_norm
    from .impl.rowwise.softmax_and_norms import softmax as softmax
    from .impl.topk.topk_softmax import topk_softmax as topk_softmax
    from .tuned_configs import tuned_config as tuned_config

_PLACES = {
    "Sm80AttentionConfig": ".impl.attention.fwd.sm80_config",
    "ElementwiseConfig": ".impl.elementwise.config",
    "Sm80AttentionBackwardConfig": ".impl.attention.bwd.sm80_config",
    "Sm90AttentionConfig": ".impl.attention.fwd.sm90_config",
    "Sm90AttentionBackwardHd256Config": ".impl.attention.bwd.sm90_hd256_config",
    "Sm90AttentionBackwardConfig": ".impl.attention.bwd.sm90_config",
    "Sm90GemmConfig": ".impl.gemm.sm90_config",
    "Sm100GemmConfig": ".impl.gemm.sm100_config",
    "Implementation": ".dispatch.registry",
    "ReductionConfig": ".impl.reduction.config",
    "RopeConfig": ".impl.rope.config",
    "RowwiseConfig": ".impl.rowwise.config",
    "StreamingRowwiseConfig": ".impl.rowwise.config",
    "Sm80GemmConfig": ".impl.gemm.sm80_config",
    "Sm90MixedInputConfig": ".impl.gemm.sm90_config",
    "argmax": ".impl.reduction.reductions",
    "argmin": ".impl.reduction.reductions",
    "cross_entropy": ".impl.cross_entropy.cross_entropy",
    "cross_entropy_backward": ".impl.cross_entropy.cross_entropy",
    "elementwise": ".impl.elementwise.elementwise",
    "explain": ".dispatch.explaining",
    "flash_attention": ".impl.attention.flash_attention",
    "flash_attention_backward": ".impl.attention.flash_attention_backward",
    "fused_add_layer_norm": ".impl.rowwise.fused_add_norm",
    "fused_add_layer_norm_backward": ".impl.rowwise.fused_add_norm",
    "fused_add_rms_norm": ".impl.rowwise.fused_add_norm",
    "fused_add_rms_norm_backward": ".impl.rowwise.fused_add_norm",
    "geglu": ".impl.rowwise.gated_activation",
    "geglu_backward": ".impl.rowwise.gated_activation",
    "gemm": ".impl.gemm.gemm",
    "grouped_gemm": ".impl.gemm.grouped_gemm",
    "Sm90MlaConfig": ".impl.mla.sm90_config",
    "layer_norm": ".impl.rowwise.softmax_and_norms",
    "layer_norm_backward": ".impl.rowwise.backward",
    "max": ".impl.reduction.reductions",
    "mean": ".impl.reduction.reductions",
    "min": ".impl.reduction.reductions",
    "mla_decode": ".impl.mla.mla_decode",
    "mla_prefill": ".impl.mla.mla_prefill",
    "paged_attention": ".impl.attention.paged_attention",
    "quantize": ".impl.rowwise.quantize",
    "rms_norm": ".impl.rowwise.softmax_and_norms",
    "rms_norm_backward": ".impl.rowwise.backward",
    "rotary_embedding": ".impl.rope.rotary_embedding",
    "softmax": ".impl.rowwise.softmax_and_norms",
    "softmax_backward": ".impl.rowwise.backward",
    "sum": ".impl.reduction.reductions",
    "tuned_config": ".tuned_configs",
    "swiglu": ".impl.rowwise.gated_activation",
    "swiglu_backward": ".impl.rowwise.gated_activation",
    "topk_softmax": ".impl.topk.topk_softmax",
}
"""Where a name is defined."""


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES)
