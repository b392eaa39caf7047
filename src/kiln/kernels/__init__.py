"""Kernels, written in Kiln: functions of arrays, a folder for each family of them."""

from __future__ import annotations

from .._support import lazy

_PLACES = {
    "AttentionTiling": ".attentions.plan",
    "ElementTiling": ".pointwise.plan",
    "GradientTiling": ".attention_gradients.plan",
    "HopperAttentionTiling": ".attentions.hopper_plan",
    "HopperDeepGradientTiling": ".attention_gradients.hopper_deep_plan",
    "HopperGradientTiling": ".attention_gradients.hopper_plan",
    "HopperTiling": ".products.hopper_plan",
    "Implementation": ".common.family",
    "ReductionTiling": ".reductions.plan",
    "RotationTiling": ".rotations.plan",
    "RowTiling": ".rows.kernel",
    "StreamTiling": ".rows.stream",
    "Tiling": ".products.plan",
    "TurnTiling": ".rows.in_turn",
    "WeightTiling": ".products.hopper_plan",
    "argmax": ".reductions.functions",
    "argmin": ".reductions.functions",
    "cross_entropy": ".losses.functions",
    "cross_entropy_backward": ".losses.functions",
    "elementwise": ".pointwise.functions",
    "explain": ".common.explaining",
    "flash_attention": ".attentions.functions",
    "flash_attention_backward": ".attention_gradients.functions",
    "fused_add_layer_norm": ".rows.added",
    "fused_add_layer_norm_backward": ".rows.added",
    "fused_add_rms_norm": ".rows.added",
    "fused_add_rms_norm_backward": ".rows.added",
    "geglu": ".rows.gated",
    "geglu_backward": ".rows.gated",
    "gemm": ".products.functions",
    "grouped_gemm": ".products.grouped_functions",
    "LatentTiling": ".latents.plan",
    "layer_norm": ".rows.functions",
    "layer_norm_backward": ".rows.gradients",
    "max": ".reductions.functions",
    "mean": ".reductions.functions",
    "min": ".reductions.functions",
    "mla_decode": ".latents.functions",
    "mla_prefill": ".latents.prefill",
    "paged_attention": ".attentions.paged",
    "rms_norm": ".rows.functions",
    "rms_norm_backward": ".rows.gradients",
    "rotary_embedding": ".rotations.functions",
    "softmax": ".rows.functions",
    "softmax_backward": ".rows.gradients",
    "sum": ".reductions.functions",
    "tuned_plan": ".tuned_plans",
    "swiglu": ".rows.gated",
    "swiglu_backward": ".rows.gated",
    "topk_softmax": ".selections.functions",
}
"""Where a name is defined."""


__getattr__ = lazy.names(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
