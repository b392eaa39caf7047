"""MLA decode as a KernelPlan: b sequences, s new tokens each, t tokens in the compressed KV cache, h heads, a 16- or
8-bit cache.

    python examples/mla_decode.py --b=128 --s=1 --t=4096 --h=128 --check                 right, and how fast?
    python examples/mla_decode.py --b=128 --h=128 --t=4096 --cache=float8_e4m3fn         and a cache of 8 bits?
    python examples/mla_decode.py --b=32 --s=1 --t=4096 --prof_type=ncu                  where does the time go?
    kiln tune examples/mla_decode.py --problem all                                       how many splits are best?

The kernel is the library's (`kiln.kernels.mla_decode`); docs/kernels.md says how it works, docs/data/decode.md how
fast it is, docs/kernels/mla_decode.md what was found with these commands.
"""

from dataclasses import dataclass

import torch

from kiln import kernels
from kiln import workbench as wb
from kiln.kernels.dispatch import devices
from kiln.kernels.impl.mla.sm90 import Sm90MlaKernel
from kiln.kernels.impl.mla.sm90_swap_ab import Sm90MlaSwapAbKernel

KV_RANK, ROPE, PAGE = 512, 64, 64
SWAP_AB_ROWS = 32
"""Up to this many query rows (tokens times heads) the kernel runs swap-AB."""


@dataclass(frozen=True)
class SplitKV(wb.Tiling):
    """`turns`: CTAs per SM among which the KV tokens of all sequences are divided; `early`: eighths of the next tile's
    scores that are issued before P of this tile is ready (without swap-AB)."""

    turns: int = 1
    early: int = 4
    num_warpgroups: int = 3

    def validate(self, pd):
        if self.early != 4 and pd.s * pd.h <= SWAP_AB_ROWS:
            return False
        return self.fits("sm_90a", smem=2 * 3 * 64 * (KV_RANK + ROPE) + 4096)


@dataclass
class MlaDecode(wb.KernelPlan):
    """MLA of s new tokens for each of b sequences with t tokens in the cache, h heads; `cache` is the element type of
    the cache."""

    b: int = 4
    s: int = 1
    t: int = 200
    h: int = 16
    cache: str = "bfloat16"

    problems = (
        {"b": 4, "s": 1, "t": 200, "h": 16},
        {"b": 128, "s": 1, "t": 8192, "h": 16},
        {"b": 128, "s": 1, "t": 4096, "h": 128},
        {"b": 100, "s": 2, "t": 4096, "h": 128},
        {"b": 128, "s": 1, "t": 4096, "h": 128, "cache": "float8_e4m3fn"},
    )
    tiling = SplitKV()
    arch = "sm_90a"

    def prepare_inputs(self):
        """Return queries, the paged cache, the page table and the sequence lengths."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        columns = -(-self.t // PAGE)
        q = torch.randn(self.b, self.s, self.h, KV_RANK + ROPE, dtype=torch.bfloat16, device=device)
        cache = torch.randn(self.b * columns, PAGE, KV_RANK + ROPE, dtype=torch.bfloat16, device=device)
        table = torch.randperm(self.b * columns, dtype=torch.int32, device=device).view(self.b, columns)
        lengths = torch.full((self.b,), self.t, dtype=torch.int32, device=device)
        return [q, cache.to(getattr(torch, self.cache)), table, lengths]

    def reference_fn(self, q, cache, table, lengths):
        """Compute one sequence at a time, with its cache gathered into one matrix."""
        out = []
        cache = cache.to(torch.bfloat16) if cache.itemsize == 1 else cache  # the same numbers
        for tokens, pages, length in zip(q, table, lengths.tolist(), strict=True):
            ckv = cache[pages.long()].flatten(0, 1)[:length].to(torch.float64)
            scores = torch.einsum("shd,td->hst", tokens.to(torch.float64), ckv) * q.shape[-1] ** -0.5
            ahead = torch.ones(self.s, length, dtype=torch.bool, device=q.device).triu(length - self.s + 1)
            weights = torch.softmax(scores.masked_fill(ahead, -float("inf")), -1)
            out.append(torch.einsum("hst,td->shd", weights, ckv[:, :KV_RANK]))
        return torch.stack(out).to(q.dtype)

    def _autotune_configs(self):
        return [SplitKV(), SplitKV(1, 8), SplitKV(1, 0), SplitKV(2), SplitKV(3)]

    def _algorithmic_flops_bytes(self):
        rows, ckv = self.b * self.s * self.h, self.b * self.t * (KV_RANK + ROPE)
        read = ckv * getattr(torch, self.cache).itemsize
        return 2 * rows * self.t * (2 * KV_RANK + ROPE), read + 2 * rows * (2 * KV_RANK + ROPE)

    def plan(self, q, cache, table, lengths):
        out = torch.empty(*q.shape[:3], KV_RANK, dtype=q.dtype, device=q.device)
        turned = self.s * self.h <= SWAP_AB_ROWS
        tiles = 1 if turned else -(-self.s * self.h // 64)

        def launch(tiling):
            shares = max(1, tiling.turns * devices.current().sm_count // tiles)
            config = kernels.Sm90MlaConfig(shares, turned, tiling.early)
            kernels.mla_decode(q, cache, table, lengths, out=out, config=config)

        return wb.CuteKernel(
            kernel_fn=(Sm90MlaSwapAbKernel if turned else Sm90MlaKernel).kernel,
            launch_fn=launch,
            input_tensors=[q, cache, table, lengths],
            output_tensors=[out],
            tiling=self.tiling,
            autotune_configs=self._autotune_configs(),
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )


if __name__ == "__main__":
    MlaDecode().benchmark_kernel_argparse()
