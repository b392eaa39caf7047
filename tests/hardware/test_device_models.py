"""The table of GPUs agrees with itself: a peak is a whole number of operations of an SM in a cycle, at the clock of its row."""

from __future__ import annotations

import pytest

from kiln.hardware import devices

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
