# pyright: reportMissingImports=false, reportIndexIssue=false
"""Names that CuTe DSL had before 4.8 compute what they did."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.arch import nvvm_wrappers
from kiln.cute.atoms.mma import ThrMma
from kiln.utils import blackwell_helpers, distributed, hopper_helpers


@cute.kernel
def kernel(powers: cute.Tensor, out: cute.Tensor):
    thread, _, _ = arch.thread_idx()
    arch.fence_proxy(arch.ProxyKind.async_shared, space=arch.SharedSpace.shared_cta)
    loaded = distributed.ld_bypass(cute.local_tile(powers, (2,), (thread // 2,)))
    out[thread] = arch.log2_of_pow2_int(loaded[0]) + arch.log2_of_pow2_int(8)


@cute.jit
def launch(powers: cute.Tensor, out: cute.Tensor):
    kernel(powers, out).launch(grid=1, block=32)


def test_in_a_kernel():
    powers = (1 << (np.arange(32, dtype=np.int64) % 31)).astype(np.int32)
    out = np.zeros(32, np.int32)
    arguments = [cute.runtime.from_dlpack(x) for x in (powers, out)]
    cute.compile(launch, *arguments, target="cpu")(*arguments)
    assert out.tolist() == [int(powers[t // 2 * 2]).bit_length() - 1 + 3 for t in range(32)]
    ptx = cute.compile(launch, *arguments, target="nvidia", options="--gpu-arch sm_100a").__ptx__
    assert "ld.relaxed.sys" in ptx, ptx
    assert "fence.proxy.async.shared::cta" in ptx


def test_constants_and_other_places():
    from cutlass.utils import ampere_helpers

    assert (arch.SM100_TMEM_CAPACITY_COLUMNS, arch.SM100_TMEM_MIN_ALLOC_COLUMNS) == (512, 32)
    assert {helpers.SMEM_CAPACITY["sm90"] for helpers in (ampere_helpers, hopper_helpers, blackwell_helpers)} == {
        227 << 10
    }
    assert cute.core.ThrMma is ThrMma and nvvm_wrappers.mapa is arch.mapa is arch.map_dsmem_ptr
    assert (cute.core.TiledCopy, cute.core.TiledMma, cute.atom.TiledMma) == (
        cute.TiledCopy,
        cute.TiledMma,
        cute.TiledMma,
    )
    assert kiln.range_constexpr(3, unroll=1) == [0, 1, 2]
