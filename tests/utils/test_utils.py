"""`kiln.utils` without torch: sizes of hardware, major modes, names."""

from __future__ import annotations

import numpy
import pytest

import kiln
from kiln import utils
from kiln.cute.runtime import from_dlpack
from kiln.utils.gemm import tensor_utils


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def test_shared_memory_of_a_block(monkeypatch: pytest.MonkeyPatch):
    sizes = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "sm_90a": 227, "sm_100": 227, "sm_103a": 227, "sm_120": 99}
    assert {arch: utils.get_smem_capacity_in_bytes(arch) // 1024 for arch in sizes} == sizes
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_120a")
    assert utils.get_smem_capacity_in_bytes() == 99 * 1024
    with pytest.raises(ValueError, match="sm_90"):
        utils.get_smem_capacity_in_bytes("hopper")
    with pytest.raises(ValueError, match="older than sm_80"):
        utils.get_smem_capacity_in_bytes("sm_75")


def test_hardware_without_hardware(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    found = utils.HardwareInfo()
    assert found.get_device_multiprocessor_count() == 132
    assert found.get_l2_cache_size_in_bytes() == 50 << 20
    assert found.get_max_active_clusters(2) == 66
    with pytest.raises(ValueError, match="cluster of 0"):
        found.get_max_active_clusters(0)


def test_major_modes():
    row, column = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR
    x = numpy.zeros((3, 4), numpy.float32)
    assert utils.LayoutEnum.from_tensor(from_dlpack(x)) is row
    assert utils.LayoutEnum.from_tensor(from_dlpack(x.T)) is column
    assert row.is_k_major_a() and row.is_k_major_b() and row.is_n_major_c()
    assert column.is_m_major_a() and column.is_n_major_b() and column.is_m_major_c()
    with pytest.raises(TypeError, match="neither"):
        utils.LayoutEnum.from_tensor(from_dlpack(numpy.zeros((3, 4, 5), numpy.float32)))


def test_names_that_do_not_exist_are_absent():
    with pytest.raises(AttributeError, match="nonsense"):
        utils.nonsense
    assert "HardwareInfo" in dir(utils)


def test_packed_numbers_and_scale_factors():
    torch = pytest.importorskip("torch")
    packed = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    numbers = torch.zeros((2, 8), dtype=torch.uint8)
    numbers.view(-1)[:8] = packed
    decoded = tensor_utils.decode_float4e2m1fn(numbers)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert decoded.tolist() == [positive, [-x for x in positive]] and decoded.dtype == torch.float32
    assert tensor_utils.decode_float4e2m1fn(numbers.T).T.tolist() == decoded.tolist()  # in the order of memory
    with pytest.raises(TypeError, match="takes bytes, got torch.float32"):
        tensor_utils.decode_float4e2m1fn(decoded)
    mn, k, l, vector = 200, 160, 2, 16
    layout = utils.blockscaled_layout.tile_atom_to_shape_SF((mn, k, l), vector)
    scales = torch.arange(2 * 2 * 3 * 512, dtype=torch.float32)
    each = tensor_utils.unpack_scale_factors(scales, vector, mn, k, l)
    assert each.shape == (mn, k, l)
    for place in ((0, 0, 0), (33, 17, 1), (199, 159, 0), (130, 64, 1)):
        assert each[place] == layout(place)
    with pytest.raises(TypeError, match="3072 scale factors for an operand"):
        tensor_utils.unpack_scale_factors(scales[:3072], vector, mn, k, l)
