"""Figures of cost models: those of the GPU that was measured, and what they become for others."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kiln.hardware.devices import device_of
from kiln.kernels import tuned
from kiln.kernels.impl.attention.bwd.sm90_cost import BackwardCoefficients
from kiln.kernels.impl.attention.fwd.decode_cost import DecodeCoefficients
from kiln.kernels.impl.attention.fwd.sm90_cost import Sm90Coefficients
from kiln.kernels.impl.gemm.sm80_cost import Sm80Coefficients, candidates
from kiln.kernels.impl.gemm.sm90_cost import Sm90Coefficients as Sm90GemmCoefficients

H200 = dataclasses.replace(device_of("sm_90a"), name="H200")
A100, H100, B200 = map(device_of, ("sm_80", "sm_90a", "sm_100a"))
MODELS = (BackwardCoefficients, DecodeCoefficients, Sm90Coefficients, Sm80Coefficients, Sm90GemmCoefficients)
TABLES = tuned._tables()


def leaves(value, path=()):
    """Yield the numbers of a table with their paths."""
    if isinstance(value, dict):
        for name, x in value.items():
            yield from leaves(x, (*path, name))
    elif isinstance(value, (list, tuple)):
        for x in value:
            yield from leaves(x, path)
    else:
        yield path, value


@pytest.mark.parametrize("table", TABLES)
def test_measured_figures_are_as_they_were_measured(table):
    assert tuned.coefficients(table, H200) is TABLES[table]
    assert tuned.coefficients(table, dataclasses.replace(H200, name="NVIDIA H200 NVL")) is TABLES[table]
    assert tuned.coefficients(table, dataclasses.replace(H200, name="a GPU of nobody")) is TABLES[table]


@pytest.mark.parametrize("device", [A100, H100, B200], ids=lambda device: device.name)
@pytest.mark.parametrize("table", TABLES)
def test_others_are_scaled_by_their_units(table, device):
    model, measured = device.model, H200.model
    bandwidth = model.bandwidth_gbs / measured.bandwidth_gbs
    clock = model.clock_mhz / measured.clock_mhz
    sms = device.sm_count / H200.sm_count
    scaled = dict(leaves(tuned.coefficients(table, device)))
    for path, value in dict(leaves(TABLES[table])).items():
        name = path[-1]
        if name.endswith("tflops"):
            continue
        factor = 1.0
        if name.endswith("dram_tbps"):
            factor = bandwidth / sms if name.startswith("sm_") else bandwidth
        elif re.search("tbps$|per_us$", name):
            factor = clock * (sms if name.startswith("gpu_") else 1)
        elif name.endswith("_us") and not re.search("launch|latency", name):
            factor = 1 / clock
        assert scaled[path] == pytest.approx(value * factor), path


def test_peaks_are_those_of_the_instruction():
    """Per SM: WGMMA by the peak, mma.sync by its share of Hopper's, and by the clock where the peak is tcgen05's."""
    per_sm = {device.name: device.model.tflops["f16"] / device.sm_count for device in (A100, H200)}
    f16, own = (candidates("f16", device)[0].tflops[0] for device in (A100, H200))
    assert f16 / own == pytest.approx(per_sm[A100.name] / (0.63 * per_sm["H200"]))
    assert f16 < per_sm[A100.name]
    b200 = candidates("f16", B200)[0].tflops[0]
    assert b200 / own == pytest.approx(B200.model.clock_mhz / H200.model.clock_mhz)
    pcie = dataclasses.replace(H100, name="H100 PCIe", sm_count=114)
    assert Sm90GemmCoefficients.on(pcie).mma_tflops / Sm90GemmCoefficients.on(H200).mma_tflops == pytest.approx(
        756 / 114 / 989.4 * 132
    )
    f32 = [candidates("simt", device)[0].tflops[0] for device in (A100, H200)]
    assert f32[0] / f32[1] == pytest.approx(19.5 / 108 / (66.9 / 132))


@pytest.mark.parametrize("kind", MODELS)
def test_tile_shapes_and_shares_stay(kind):
    """What has no unit is the same for all GPUs; extents stay integers, so that configs are those of the H200."""
    for device in (A100, B200):
        ours, own = (dict(leaves(dataclasses.asdict(kind.on(x)))) for x in (device, H200))
        assert ours.keys() == own.keys()
        for path, value in own.items():
            if not re.search("tbps$|per_us$|_us$|tflops$", path[-1]):
                assert ours[path] == value and type(ours[path]) is type(value), path
