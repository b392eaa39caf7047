"""Kernels, written in Kiln: functions of arrays, a folder for each family of them."""

from __future__ import annotations

from .._support import lazy

_PLACES = {
    "Sm80AttentionConfig": ".impl.attention.fwd.sm80_config",
    "ElementwiseConfig": ".impl.elementwise.config",
    "Sm80AttentionBackwardConfig": ".impl.attention.bwd.sm80_config",
    "Sm90AttentionConfig": ".impl.attention.fwd.sm90_config",
    "Sm90AttentionBackwardHd256Config": ".impl.attention.bwd.sm90_hd256_config",
    "Sm90AttentionBackwardConfig": ".impl.attention.bwd.sm90_config",
    "Sm90GemmConfig": ".impl.gemm.sm90_config",
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


__getattr__ = lazy.names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
