"""What bank conflicts cost on a GPU, beside what `kiln.bank_conflicts` counts for the same accesses.

    python benchmarks/bank_conflicts.py

One warp after another reads shared memory by a table of addresses, many times; the cycles of an access are measured
where nothing else limits it. A model is right if the cycles of an access are those of its wavefronts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import numpy as np

import kiln
from kiln import cute
from kiln.cute import arch

ROUNDS, UNROLL, WARPS, BYTES = 64, 16, 8, 16384
LOADS = {
    4: "ld.volatile.shared.u32 {$w0}, [{$r0}];",
    8: "{ .reg .b32 x; ld.volatile.shared.v2.u32 {{$w0}, x}, [{$r0}]; }",
    16: "{ .reg .b32 x, y, z; ld.volatile.shared.v4.u32 {{$w0}, x, y, z}, [{$r0}]; }",
}


def reader(width: int) -> Any:
    @cute.kernel
    def kernel(where: cute.Tensor, cycles: cute.Tensor, out: cute.Tensor, rounds: cute.Int32):
        memory = arch.alloc_smem(cute.Int32, BYTES // 4, 128)
        t = arch.thread_idx()[0]
        tile = cute.make_tensor(memory, cute.make_layout(BYTES // 4))
        for i in range(BYTES // 4 // (32 * WARPS)):
            tile[i * 32 * WARPS + t] = t
        address = memory.toint() + where[t % 32]
        total = cute.Int32(0)
        arch.sync_threads()
        start = arch.clock64()
        for _ in range(rounds):
            for _ in kiln.range_constexpr(UNROLL):
                total += arch.inline_ptx(LOADS[width], write_only_types=[cute.Int32], read_only_args=[address])
        arch.sync_threads()
        end = arch.clock64()
        out[t] = total
        if t == 0:
            cycles[0] = end - start

    @cute.jit
    def launch(where: cute.Tensor, cycles: cute.Tensor, out: cute.Tensor, rounds: cute.Int32):
        kernel(where, cycles, out, rounds).launch(grid=1, block=32 * WARPS)

    return launch


def patterns(width: int) -> dict[str, np.ndarray]:
    lanes, rng = np.arange(32), np.random.default_rng(width)
    made = {f"stride {s}": lanes * s * width % BYTES for s in (1, 2, 3, 4, 8, 16, 17, 32)}
    made["one word"] = lanes * 0
    made["two words of a bank"] = lanes % 2 * 128
    made["halves of a row"] = lanes // 2 * width
    for n in range(4):
        made[f"random in {256 << n} bytes"] = rng.integers(0, (256 << n) // width, 32) * width
    return {name: np.ascontiguousarray(value, np.int32) for name, value in made.items()}


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    print(f"{'width':>5}  {'pattern':<24}{'wavefronts':>10}{'ideal':>7}{'cycles':>9}{'ratio':>8}")
    for width in LOADS:
        launch = reader(width)
        for name, where in patterns(width).items():
            out = np.zeros(32 * WARPS, np.int32)
            with kiln.bank_conflicts() as report:
                launch(where, np.zeros(1, np.int64), out, 1)
            (place,) = (
                one for one in report if one.operation == "ld" and one.width == width and one.accesses == UNROLL * WARPS
            )
            table, result = torch.from_numpy(where).cuda(), torch.from_numpy(out).cuda()
            cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
            best = 1e9
            for _ in range(5):
                launch(table, cycles, result, ROUNDS)
                best = min(best, cycles.item() / (ROUNDS * UNROLL * WARPS))
            wavefronts, ideal = place.wavefronts / place.accesses, place.ideal / place.accesses
            print(
                f"{width:>5}  {name:<24}{wavefronts:>10.1f}{ideal:>7.1f}{best:>9.2f}{best / wavefronts:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
