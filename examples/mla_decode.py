"""Attention to latents (MLA) of the newest tokens, as a plan: b sequences, s tokens of each, t latents, h heads, a cache of 16 or 8 bits.

    python examples/mla_decode.py --b=128 --s=1 --t=4096 --h=128 --check                 right, and how fast?
    python examples/mla_decode.py --b=128 --h=128 --t=4096 --cache=float8_e4m3fn         and a cache of 8 bits?
    python examples/mla_decode.py --b=32 --s=1 --t=4096 --prof_type=ncu                  where does the time go?
    kiln tune examples/mla_decode.py --problem all                                       into how many shares is it cut best?

The kernel is the library's (`kiln.kernels.mla_decode`); docs/kernels.md says how it works, docs/data/decode.md how fast it is,
docs/kernels/mla_decode.md what was found with these commands.
"""

from dataclasses import dataclass

import torch

from kiln import kernels
from kiln import workbench as wb
from kiln.kernels.impl.mla.sm90 import LatentForward
from kiln.kernels.impl.mla.sm90_swap_ab import TurnedForward

LATENT, ROPE, PAGE = 512, 64, 64
FEW = 32
"""Up to so many tokens and heads latents are the rows of products."""


@dataclass(frozen=True)
class Shares(wb.Tiling):
    """Blocks of threads on each multiprocessor, one after another, among which the latents of all sequences are divided; and eighths of the
    scores of a block that are begun before the weights of the block before are there, if tokens and heads are the rows of products."""

    turns: int = 1
    early: int = 4
    num_warpgroups: int = 3

    def validate(self, pd):
        if self.early != 4 and pd.s * pd.h <= FEW:
            return False
        return self.fits("sm_90a", smem=2 * 3 * 64 * (LATENT + ROPE) + 4096)


@dataclass
class MlaDecode(wb.KernelPlan):
    """Attention of s new tokens of b sequences to t latents each, h heads; the type of the latents."""

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
    tiling = Shares()
    arch = "sm_90a"

    def prepare_inputs(self):
        """Queries, latents in pages that lie anywhere, the table of pages, and lengths."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        columns = -(-self.t // PAGE)
        q = torch.randn(self.b, self.s, self.h, LATENT + ROPE, dtype=torch.bfloat16, device=device)
        cache = torch.randn(self.b * columns, PAGE, LATENT + ROPE, dtype=torch.bfloat16, device=device)
        table = torch.randperm(self.b * columns, dtype=torch.int32, device=device).view(self.b, columns)
        lengths = torch.full((self.b,), self.t, dtype=torch.int32, device=device)
        return [q, cache.to(getattr(torch, self.cache)), table, lengths]

    def reference_fn(self, q, cache, table, lengths):
        """Sequence by sequence, with all latents of a sequence in one matrix."""
        out = []
        cache = cache.to(torch.bfloat16) if cache.itemsize == 1 else cache  # the same numbers
        for tokens, pages, length in zip(q, table, lengths.tolist(), strict=True):
            latents = cache[pages.long()].flatten(0, 1)[:length].to(torch.float64)
            scores = torch.einsum("shd,td->hst", tokens.to(torch.float64), latents) * q.shape[-1] ** -0.5
            ahead = torch.ones(self.s, length, dtype=torch.bool, device=q.device).triu(length - self.s + 1)
            weights = torch.softmax(scores.masked_fill(ahead, -float("inf")), -1)
            out.append(torch.einsum("hst,td->shd", weights, latents[:, :LATENT]))
        return torch.stack(out).to(q.dtype)

    def _autotune_configs(self):
        return [Shares(), Shares(1, 8), Shares(1, 0), Shares(2), Shares(3)]

    def _algorithmic_flops_bytes(self):
        rows, latents = self.b * self.s * self.h, self.b * self.t * (LATENT + ROPE)
        read = latents * getattr(torch, self.cache).itemsize
        return 2 * rows * self.t * (2 * LATENT + ROPE), read + 2 * rows * (2 * LATENT + ROPE)

    def plan(self, q, cache, table, lengths):
        out = torch.empty(*q.shape[:3], LATENT, dtype=q.dtype, device=q.device)
        turned = self.s * self.h <= FEW
        tiles = 1 if turned else -(-self.s * self.h // 64)

        def launch(tiling):
            shares = max(1, tiling.turns * kernels.dispatch.devices.current().multiprocessors // tiles)
            config = kernels.Sm90MlaConfig(shares, turned, tiling.early)
            kernels.mla_decode(q, cache, table, lengths, out=out, config=config)

        return wb.CuteKernel(
            kernel_fn=(TurnedForward if turned else LatentForward).kernel,
            launch_fn=launch,
            input_tensors=[q, cache, table, lengths],
            output_tensors=[out],
            tiling=self.tiling,
            autotune_configs=self._autotune_configs(),
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )


if __name__ == "__main__":
    MlaDecode().benchmark_kernel_argparse()
