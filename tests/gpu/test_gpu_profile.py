"""`kiln profile` on a GPU: what it says of a product is what ncu says, at the lines that wait; ranges have times."""

from __future__ import annotations

import csv
import subprocess
import textwrap
from pathlib import Path

import pytest

from kiln import workbench as wb
from kiln.hardware import driver
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile import ncu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "hopper"
CASE = f"""
import sys
import torch
sys.path.insert(0, {str(EXAMPLES)!r})
import step_2_gemm

arch = "sm_90a"

def get_inputs(m=1024, n=1024, k=2048):
    return [torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n)]

def kernel_fn(a, b):
    c = torch.empty(a.shape[0], b.shape[0], device="cuda", dtype=torch.float16)
    step_2_gemm.gemm(a, b, c)
    return c

def reference_fn(a, b):
    return a @ b.T

def flops_bytes(m, n, k):
    return 2 * m * n * k, 2 * (m * k + n * k + m * n)
"""


@pytest.fixture
def product(tmp_path):
    if driver.capability() != (9, 0):
        pytest.skip("the kernel is for sm_90a")
    (tmp_path / "product.py").write_text(CASE)
    return wb.load(tmp_path / "product.py")


def test_g6_ncu_says_the_same_and_stalls_are_at_the_lines_that_wait(product, tmp_path):
    found = profile.profile(product, prof_type="ncu")
    assert ncu.NO_GPU not in found.missing, found.missing  # others of its reasons are the machine's
    if found.missing:
        pytest.skip(found.missing)
    (kernel,) = found.kernels
    (report,) = (tmp_path / ".kiln" / "profiles").glob("*.ncu-rep")
    said = subprocess.run(
        [ncu.find("ncu"), "--import", str(report), "--page", "raw", "--csv"], capture_output=True, text=True, check=True
    ).stdout
    names, _, values = list(csv.reader(said.splitlines()))[:3]
    raw = dict(zip(names, values))
    for name, metric in {
        "TC%": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "DRAM%": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Occupancy%": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "L2 hit%": "lts__t_sector_hit_rate.pct",
        "Theoretical%": "sm__maximum_warps_per_active_cycle_pct",
    }.items():
        assert kernel.metrics[name] == pytest.approx(float(raw[metric].replace(",", "")), abs=0.01), name
    most = [kernel.source(line) for line in sorted(kernel.lines, key=lambda line: -line.total)[:6]]
    assert any("mbarrier_wait" in line for line in most) and any("wait_group" in line for line in most), most
    assert any("cute.gemm" in kernel.source(line) for line in kernel.lines)
    static = profile.profile(product).kernels[0].metrics
    for name in ("Theoretical%", "Limited by", "Registers/thread", "SMEM/block (KB)"):
        assert static[name] == kernel.metrics[name], name


def test_annotation_gives_time_launches_and_resources(product):
    found = profile.profile(product, prof_type="annotation")
    assert not found.missing and not found.failed, found.missing or found.failed
    assert found.kernels[0].metrics["Duration (us)"] > 0
    assert found.kernels[0].metrics["Registers/thread"] > 0 and "samples" in found.notes[0]


def test_ranges_are_in_cycles(tmp_path):
    (tmp_path / "ranged.py").write_text(
        textwrap.dedent("""
        import torch
        from kiln import cute

        @cute.kernel
        def ranged(x: cute.Tensor):
            t, _, _ = cute.arch.thread_idx()
            with cute.testing.range("sleep"):
                cute.arch.nanosleep(200000)
            with cute.testing.range("store"):
                x[t] = x[t] + 1.0

        @cute.jit
        def launch(x: cute.Tensor):
            ranged(x).launch(grid=(4, 1, 1), block=(96, 1, 1))

        def get_inputs(n=96):
            return [torch.zeros(n, device="cuda")]

        def kernel_fn(x):
            launch(x)
            return x

        def reference_fn(x):
            return x + 1

        mutates = [0]
        """)
    )
    found = profile.profile(wb.load(tmp_path / "ranged.py"), prof_type="trace").extra["trace"]
    assert (found["unit"], found["lost"]) == ("cycles", 0)
    ranges = {each["name"]: each for each in found["ranges"]}
    assert ranges["sleep"]["count"] == ranges["store"]["count"] == 12
    assert ranges["sleep"]["median"] > ranges["store"]["median"] > 0
