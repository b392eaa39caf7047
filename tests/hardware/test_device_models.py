"""The table of GPUs agrees with itself: a peak is a whole number of operations of an SM in a cycle, at the clock of its row."""

from __future__ import annotations

import numpy as np
import pytest

from kiln import kernels
from kiln.hardware import devices, features
from kiln.hardware.architectures import Arch
from kiln.testing import dry_run

MODELS = devices.models()
CUDA_CORES = ("f32", "f64")
"""Peaks of these are at the highest clock that vendors name, or at that of the tensor cores."""
OF_A_CYCLE = {2.0**k for k in range(6, 18)} | {3 * 2.0**14}
"""FLOPs of an SM in a cycle."""


@pytest.mark.parametrize("name", MODELS)
def test_peaks_follow_from_clock_and_sms(name):
    model = MODELS[name]
    assert model.clock_mhz is not None
    highest = model.most_mhz or model.clock_mhz
    assert highest >= model.clock_mhz
    for dtype, peak in model.tflops.items():
        of_clock, of_highest = (peak * 1e6 / (model.sm_count * mhz) for mhz in (model.clock_mhz, highest))
        if dtype in CUDA_CORES:
            fits = any(of_highest * 0.97 <= count <= of_clock * 1.03 for count in OF_A_CYCLE)
        else:
            fits = any(abs(of_clock / count - 1) < 0.015 for count in OF_A_CYCLE)
        assert fits, f"{dtype}: {of_clock:.1f} FLOPs of an SM in a cycle"


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("sm_80", "sm_80"), ("sm_90", "sm_90"), ("sm_90a", "sm_90a"), ("sm_100f", "sm_100f"), ("sm_101a", "sm_110a")],
)
def test_code_for_a_device_is_for_its_architecture(architecture, name):
    assert devices.device_of(architecture).architecture is Arch[name]


def test_an_unknown_gpu_is_taken_for_the_one_before_it_without_what_that_has_alone():
    device = devices.device_of("sm_131a")
    assert device.architecture is Arch.sm_121
    assert device.has(features.CLUSTER_LAUNCH_CONTROL)
    assert not device.has(features.WARP_MMA_BLOCK_SCALE)


def test_a_device_says_why_it_lacks_a_feature():
    assert devices.device_of("sm_90a").lacks(features.WARPGROUP_MMA) is None
    b200 = devices.device_of("sm_100a")
    assert b200.lacks(features.WARPGROUP_MMA) == f"wgmma needs sm_90a, and {b200.name} is sm_100a"
    assert devices.device_of("sm_90").lacks(features.WARPGROUP_MMA) is not None  # the same GPU, without its own code
    assert b200.lacks(features.TCGEN05) is None
    assert devices.device_of("sm_120a").lacks(features.TCGEN05) is not None


@pytest.mark.parametrize("function", ["gemm", "flash_attention"])
def test_choices_name_the_feature_that_an_implementation_lacks(function):
    x = np.zeros((1, 256, 4, 64) if function == "flash_attention" else (256, 256), np.float16)
    with dry_run("sm_100a"):
        said = str(kernels.explain(getattr(kernels, function), *[x] * (3 if function == "flash_attention" else 2)))
    assert "wgmma needs sm_90a, and" in said
