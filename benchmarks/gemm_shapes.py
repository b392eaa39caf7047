"""The GEMMs that configs are measured for: layers of public models, X (tokens, K) times the transpose of W (N, K).

Each layer has some of the numbers of tokens of `TOKENS`. Every third layer, by a hash of its N and K, is held out: no
constant is fitted to it. Few other GEMMs, all held out, tell what the model makes of other shapes and layouts. This
module imports nothing of Kiln.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

TOKENS = (1, 4, 8, 16, 32, 64, 100, 128, 200, 512, 1024, 2048, 8192)
_EACH = 3
"""Numbers of tokens of a layer, evenly spaced."""

_OF_MODELS = {
    "Llama-3.2-1B": {"qkv": (3072, 2048), "o": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)},
    "Llama-3.2-3B": {"qkv": (5120, 3072), "o": (3072, 3072)},
    "Llama-3.1-8B": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
        "lm_head": (128256, 4096),
    },
    "Llama-3.1-70B": {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)},
    "Llama-3.1-70B, 8 GPUs": {"qkv": (1280, 8192), "o": (8192, 1024), "gate_up": (7168, 8192), "down": (8192, 3584)},
    "Llama-3.1-405B, 8 GPUs": {
        "qkv": (2304, 16384),
        "o": (16384, 2048),
        "gate_up": (13312, 16384),
        "down": (16384, 6656),
    },
    "Qwen3-4B": {"qkv": (6144, 2560), "o": (2560, 4096), "gate_up": (19456, 2560), "down": (2560, 9728)},
    "Qwen3-30B-A3B": {"qkv": (5120, 2048), "o": (2048, 4096), "lm_head": (151936, 2048)},
    "Qwen2.5-7B": {"qkv": (4608, 3584), "o": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)},
    "Qwen2.5-32B": {"qkv": (7168, 5120), "gate_up": (55296, 5120), "down": (5120, 27648)},
    "Mistral-Small-24B": {"qkv": (6144, 5120), "o": (5120, 4096), "gate_up": (65536, 5120), "down": (5120, 32768)},
    "DeepSeek-V3": {
        "q_a, kv_a": (2112, 7168),
        "q_b": (24576, 1536),
        "kv_b": (32768, 512),
        "o": (7168, 16384),
        "shared gate_up": (4096, 7168),
        "shared down": (7168, 2048),
        "gate_up": (36864, 7168),
        "down": (7168, 18432),
        "lm_head": (129280, 7168),
    },
    "DeepSeek-V2-Lite": {"kv_a": (576, 2048), "q": (3072, 2048), "kv_b": (4096, 512), "down": (2048, 10944)},
    "Kimi-K2": {"q_b": (12288, 1536), "o": (7168, 8192)},
    "Gemma-2-9B": {"qkv": (8192, 3584), "o": (3584, 4096), "gate_up": (28672, 3584), "lm_head": (256000, 3584)},
    "Gemma-3-27B": {"qkv": (8192, 5376), "gate_up": (43008, 5376), "down": (5376, 21504)},
    "Phi-3-mini": {"qkv": (9216, 3072), "gate_up": (16384, 3072), "down": (3072, 8192)},
    "Phi-4": {"qkv": (7680, 5120), "gate_up": (35840, 5120), "down": (5120, 17920)},
    "GPT-OSS-120B": {"qkv": (5120, 2880), "o": (2880, 4096), "lm_head": (201088, 2880)},
    "ViT-L": {"qkv": (3072, 1024), "fc1": (4096, 1024), "fc2": (1024, 4096)},
    "SigLIP-so400m": {"qkv": (3456, 1152), "fc1": (4304, 1152), "fc2": (1152, 4304)},
    "BERT-base": {"qkv": (2304, 768), "o": (768, 768), "fc1": (3072, 768), "fc2": (768, 3072)},
    "BERT-large": {"fc1": (4096, 1024), "o": (1024, 1024)},
}
_EVERY_TOKENS = ("DeepSeek-V3 q_a, kv_a", "Qwen3-4B down", "Llama-3.1-8B o")
"""Layers with all numbers of tokens."""
_OTHER_TYPES = {"float8_e4m3fn": 3, "float16": 4}
"""One more GEMM of every third or fourth layer has this type."""
_MOST_LOGITS = 512
"""Tokens of which logits are computed at most."""


_OTHERS = {
    "square": [("float16", "NT", n, n, n) for n in (512, 1024, 1536, 2048, 3072, 4096, 8192)],
    "long K": [("bfloat16", "NT", *mnk) for mnk in ((512, 512, 32768), (256, 1024, 65536), (128, 256, 16384))],
    "thin N": [("bfloat16", "NT", *mnk) for mnk in ((8192, 64, 8192), (16384, 16, 4096), (4096, 128, 4096))],
    "odd": [
        ("bfloat16", "NT", 3000, 3000, 3000),
        ("bfloat16", "NT", 1000, 3000, 1000),
        ("float16", "NN", 1784, 2504, 904),
        ("bfloat16", "NT", 1536, 2040, 1160),
        ("bfloat16", "NT", 200, 2568, 2056),
    ],
    "layout": [
        ("float16", "NN", 4096, 4096, 4096),
        ("float16", "TN", 2048, 8192, 4096),
        ("float16", "TT", 3072, 4096, 2048),
        ("bfloat16", "NN", 64, 4096, 4096),
        ("bfloat16", "TN", 4096, 4096, 1024),
    ],
}
"""GEMMs that are no layers, by kinds."""


class Gemm(NamedTuple):
    """A GEMM: `layout` says for A and B whether rows (N) or columns (T) are contiguous."""

    dtype: str
    layout: str
    m: int
    n: int
    k: int
    kind: str = ""
    """The name of a layer, or a kind of `_OTHERS`."""
    held_out: bool = False

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.layout} {self.m}x{self.n}x{self.k}"


def layers() -> list[Gemm]:
    """Return the GEMMs of layers."""
    found: dict[str, Gemm] = {}
    names = [(f"{model} {part}", *extents) for model, parts in _OF_MODELS.items() for part, extents in parts.items()]
    weights = sorted({(n, k) for _, n, k in names}, key=lambda nk: hashlib.sha256(repr(nk).encode()).hexdigest())
    held_out = set(weights[::3])

    def add(name: str, dtype: str, m: int, n: int, k: int) -> None:
        if m <= _MOST_LOGITS or not name.endswith("lm_head"):
            shape = Gemm(dtype, "NT", m, n, k, name, (n, k) in held_out)
            found.setdefault(shape.name, shape)

    for number, (name, n, k) in enumerate(names):
        chosen = [TOKENS[(3 * number + len(TOKENS) * i // _EACH) % len(TOKENS)] for i in range(_EACH)]
        for m in TOKENS if name in _EVERY_TOKENS else chosen:
            add(name, "bfloat16", m, n, k)
        for dtype, every in _OTHER_TYPES.items():
            if number % every == 0:
                add(name, dtype, chosen[number // every % _EACH], n, k)
    return list(found.values())


def others() -> list[Gemm]:
    """Return the GEMMs that are no layers, which are held out."""
    return [Gemm(*row, kind, True) for kind, rows in _OTHERS.items() for row in rows]
