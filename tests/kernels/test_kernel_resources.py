"""No kernel that ships uses local memory in its default configurations: compiled for GPUs that are not there."""

from __future__ import annotations

import json
import os
import textwrap

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


@pytest.mark.quick(9)
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
