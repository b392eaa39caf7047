"""No kernel that ships uses local memory in its default configurations: compiled for GPUs that are not there."""

from __future__ import annotations

import json
import os
import textwrap

import library_calls
import numpy as np
import pytest
from library_calls import SHIPPED

from kiln.targets.nvidia import codegen
from kiln.testing import assert_no_local_memory, dry_run

pytestmark = pytest.mark.skipif(
    codegen.ptxas_version() is None, reason="there is no ptxas: pip install nvidia-cuda-nvcc"
)


ELSEWHERE = {
    "gemm f16 NT", "gemm f16 TN", "gemm e4m3 NT", "gemm i8 NT", "gemm tf32 NT",  # test_products_do_not_wait_for_each_other
    "mla bf16",  # test_products_are_begun_together
    "rms_norm bf16", "layer_norm f16", "softmax f32, long", "layer_norm f32, odd",  # test_kernel_registers.py
    "gemm bf16 TT", "gemm f16, small", "attention bf16 128", "attention bf16 64, causal",  # less than one that stays
    "attention bf16 64, windows and logarithms",
}  # fmt: skip
"""What other tests compile, or what needs less than what is compiled here: these are in the long stage."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SHIPPED if os.environ.get("KILN_LONG_TESTS") else sorted({*SHIPPED} - ELSEWHERE))
def test_everything_is_in_registers(name):
    with dry_run("sm_90a") as launches:
        SHIPPED[name]()
    assert launches
    assert_no_local_memory(*launches)
    for launch in launches:
        threads = int(np.prod(launch.block))
        assert threads * launch.resources.registers <= 65536
        assert launch.smem + launch.resources.static_smem <= 227 << 10


@pytest.mark.quick(0)
def test_on_sm_80(child, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import json
        import numpy as np
        from kiln import kernels
        from kiln.testing import assert_no_local_memory, dry_run

        with dry_run("sm_80") as launches:
            kernels.gemm(np.zeros((2048, 64), np.float16), np.zeros((64, 2048), np.float16))
            kernels.softmax(np.zeros((4, 8192), np.float16))
            kernels.flash_attention(*[np.zeros((1, 256, 1, 128), np.float16)] * 3, causal=True)
        assert_no_local_memory(*launches)
        print(json.dumps([[launch.arch, launch.smem + launch.resources.static_smem] for launch in launches]))
        """)
    )
    done = child("program.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 3  # attention may take two
    assert {arch for arch, _ in found} == {"sm_80"}
    assert all(smem <= 163 << 10 for _, smem in found)


NEEDS_WGMMA = {"gemm bf16 NT, pingpong"}
NEEDS_SMEM = {"gemm f16 NT, mma.sync": "it takes 147456 bytes of shared memory, and a CTA has 101376"}
"""Calls that name a config of sm_80 or sm_90 with more shared memory than a CTA of sm_120 has."""


@pytest.mark.quick(0)
@pytest.mark.parametrize("arch", ["sm_120a", "sm_100a", "sm_121a"])
def test_on_blackwell(child, tmp_path, arch):
    """Defaults fit the GPU: kernels of sm_80 run there, also long rows, with less shared memory than on an H200."""
    few = "gemm f16, bias and gelu", "gemm e4m3 NT", "softmax f32, long"
    names = list(SHIPPED) if os.environ.get("KILN_LONG_TESTS") else few
    (tmp_path / "program.py").write_text(
        textwrap.dedent(f"""
        import json, sys
        sys.path.insert(0, {os.path.dirname(str(library_calls.__file__))!r})
        from library_calls import SHIPPED
        from kiln.testing import dry_run

        found, refused = [], {{}}
        with dry_run({arch!r}) as launches:
            for name in {names!r}:
                try:
                    SHIPPED[name]()
                except TypeError as error:
                    refused[name] = error.args[0]
            found = [[one.kernel, one.arch, one.smem + one.resources.static_smem] for one in launches]
        print(json.dumps([found, refused]))
        """)
    )
    done = child("program.py")
    assert done.returncode == 0, done.stderr
    launches, refused = json.loads(done.stdout.splitlines()[-1])
    assert len(launches) >= len(names) - 4 and {one for _, one, _ in launches} == {arch}
    assert all(smem <= (227 if arch == "sm_100a" else 99) << 10 for _, _, smem in launches)
    assert not any("Sm90" in kernel for kernel, _, _ in launches)
    for name, why in refused.items():
        assert name in NEEDS_WGMMA or (arch != "sm_100a" and NEEDS_SMEM[name] in why)
        assert name not in NEEDS_WGMMA or "wgmma needs sm_90a, and" in why
