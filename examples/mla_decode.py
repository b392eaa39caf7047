"""Attention to latents (MLA) of the newest tokens, as a plan: b sequences of s latents, t tokens each, h heads.

    python examples/mla_decode.py --b=128 --s=4096 --t=1 --h=128 --check                 right, and how fast?
    python examples/mla_decode.py --b=128 --s=4096 --prof_type=ncu                       where does the time go?
    kiln tune examples/mla_decode.py --set b=128 --set s=4096                            into how many shares is it cut best?

The kernel is the library's (`kiln.kernels.mla_decode`); docs/kernels.md says how it works, docs/data/decode.md how fast it is.
"""

from dataclasses import dataclass

import torch

from kiln import kernels
from kiln import workbench as wb
from kiln.kernels.latents.hopper import LatentForward
from kiln.kernels.latents.turned import TurnedForward

LATENT, ROPE, PAGE = 512, 64, 64


@dataclass(frozen=True)
class Shares(wb.Tiling):
    """Blocks of threads on each multiprocessor, one after another, among which the latents of all sequences are divided."""

    turns: int = 1
    num_warpgroups: int = 3

    def validate(self, pd):
        return self.fits("sm_90a", smem=2 * 3 * 64 * (LATENT + ROPE) + 4096)


@dataclass
class MlaDecode(wb.KernelPlan):
    """Attention of t new tokens of b sequences to s latents each, h heads."""

    b: int = 4
    s: int = 200
    t: int = 1
    h: int = 16

    tiling = Shares()
    arch = "sm_90a"

    def prepare_inputs(self):
        """Queries, latents in pages that lie anywhere, the table of pages, and lengths of which some are shorter."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        columns = -(-self.s // PAGE)
        q = torch.randn(self.b, self.t, self.h, LATENT + ROPE, dtype=torch.bfloat16, device=device)
        cache = torch.randn(self.b * columns, PAGE, LATENT + ROPE, dtype=torch.bfloat16, device=device)
        table = torch.randperm(self.b * columns, dtype=torch.int32, device=device).view(self.b, columns)
        lengths = torch.full((self.b,), self.s, dtype=torch.int32, device=device)
        return [q, cache, table, lengths]

    def reference_fn(self, q, cache, table, lengths):
        """Sequence by sequence, with all latents of a sequence in one matrix."""
        out = []
        for tokens, pages, length in zip(q, table, lengths.tolist(), strict=True):
            latents = cache[pages.long()].flatten(0, 1)[:length].to(torch.float64)
            scores = torch.einsum("thd,sd->hts", tokens.to(torch.float64), latents) * q.shape[-1] ** -0.5
            ahead = torch.ones(self.t, length, dtype=torch.bool, device=q.device).triu(length - self.t + 1)
            weights = torch.softmax(scores.masked_fill(ahead, -float("inf")), -1)
            out.append(torch.einsum("hts,sd->thd", weights, latents[:, :LATENT]))
        return torch.stack(out).to(q.dtype)

    def _autotune_configs(self):
        return [Shares(turns) for turns in (1, 2, 3, 4)]

    def _algorithmic_flops_bytes(self):
        rows = self.b * self.t * self.h
        return 2 * rows * self.s * (2 * LATENT + ROPE), 2 * (
            self.b * self.s * (LATENT + ROPE) + rows * (2 * LATENT + ROPE)
        )

    def plan(self, q, cache, table, lengths):
        out = torch.empty(*q.shape[:3], LATENT, dtype=q.dtype, device=q.device)
        tiles = -(-self.t * self.h // 64)

        def launch(tiling):
            shares = max(1, tiling.turns * kernels.devices.current().multiprocessors // tiles)
            kernels.mla_decode(q, cache, table, lengths, out=out, splits=shares)

        return wb.CuteKernel(
            kernel_fn=(TurnedForward if self.t * self.h <= 32 else LatentForward).kernel,
            launch_fn=launch,
            input_tensors=[q, cache, table, lengths],
            output_tensors=[out],
            tiling=self.tiling,
            autotune_configs=self._autotune_configs(),
            algorithmic_flops_bytes_fn=self._algorithmic_flops_bytes,
        )


if __name__ == "__main__":
    MlaDecode().benchmark_kernel_argparse()
