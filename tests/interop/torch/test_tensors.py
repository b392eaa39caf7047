"""`kiln.torch` on the host: element types, filled tensors, conversion to narrow types."""

from __future__ import annotations

import ml_dtypes
import numpy
import pytest

import kiln

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kiln import torch as kiln_torch  # noqa: E402
from kiln.cute import testing  # noqa: E402
from kiln.cute.runtime import from_dlpack, make_ptr  # noqa: E402


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def test_dtypes():
    assert kiln_torch.dtype(kiln.BFloat16) is torch.bfloat16
    assert kiln_torch.dtype(kiln.TFloat32) is torch.float32
    assert kiln_torch.dtype(kiln.Boolean) is torch.bool
    assert kiln_torch.dtype(kiln.Float8E5M2) is torch.float8_e5m2
    with pytest.raises(TypeError, match="Int4"):
        kiln_torch.dtype(kiln.Int4)


def test_matrices_have_the_major_mode_fastest():
    for is_mode0_major, strides in ((True, (1, 3, 15)), (False, (5, 1, 15))):
        made = kiln_torch.matrix(2, 3, 5, is_mode0_major, kiln.Float16)
        assert (tuple(made.shape), made.stride(), made.dtype) == ((3, 5, 2), strides, torch.float16)
        assert kiln_torch.get_leading_dim(made) == (0 if is_mode0_major else 1)
    assert kiln_torch.matrix(1, 64, 64, True, kiln.Uint8).unique().tolist() == [0, 1, 2, 3]
    assert kiln_torch.matrix(1, 64, 64, True, kiln.Float8E4M3FN).unique().tolist() == [-2, -1, 0, 1]


def test_random_integers_exclude_the_largest():
    # public programs draw lengths with max_val = longest + 1, and scale factors of 1 and 2, powers of two, with 3
    config = kiln_torch.RandomInitConfig(min_val=1, max_val=3)
    kinds, make = kiln_torch.TensorInitType, kiln_torch.create_and_permute_torch_tensor
    assert make((200,), torch.float32, None, kinds.RANDOM, config).unique().tolist() == [1, 2]


def test_contents():
    kinds, make = kiln_torch.TensorInitType, kiln_torch.create_and_permute_torch_tensor
    assert make((2, 3), torch.int8, (1, 0), kinds.SCALAR, kiln_torch.ScalarInitConfig(7)).tolist() == [[7, 7]] * 3
    normal = make((4000,), torch.float32, None, kinds.GAUSSIAN, kiln_torch.GaussianInitConfig(1.0, 0.5, 2.0))
    assert abs(normal.mean().item() - 2) < 0.1 and abs(normal.std().item() - 1) < 0.1
    assert make((2,), torch.float16, None, kinds.SKIP).shape == (2,)
    for ends, values in (((1, 3), [1, 2]), ((5, 5), [5])):
        config = kiln_torch.RandomInitConfig(*ends)
        assert make((100,), torch.float32, None, kinds.RANDOM, config).unique().tolist() == values
    with pytest.raises(TypeError, match="ScalarInitConfig"):
        make((2,), torch.float32, None, kinds.SCALAR, kiln_torch.RandomInitConfig())


@pytest.mark.parametrize("major", [0, 1])
@pytest.mark.parametrize(
    ("kind", "numpy_type", "limit"),
    [
        (kiln.Float8E4M3FN, ml_dtypes.float8_e4m3fn, 448),
        (kiln.Float8E5M2, ml_dtypes.float8_e5m2, 57344),
        (kiln.Float4E2M1FN, ml_dtypes.float4_e2m1fn, 6),
    ],
)
def test_narrow_types_are_rounded_to_bytes_and_converted_back(kind, numpy_type, limit, major):
    values = torch.linspace(-9, 9, 12 * 8).reshape(12, 8)
    values = values.t().contiguous().t() if major == 0 else values
    expected = values.numpy().clip(-limit, limit).astype(numpy_type).astype(numpy.float32)
    tensor, storage = kiln_torch.cute_tensor_like(values, kind, is_dynamic_layout=True, assumed_align=16)
    assert tensor.element_type is kind and tuple(tensor.shape) == (12, 8) and tensor.leading_dim == major
    assert storage.dtype is torch.uint8 and storage.shape == values.shape and storage.stride() == values.stride()
    if kind.width == 8:
        assert storage.numpy().view(numpy_type).astype(numpy.float32).tolist() == expected.tolist()
    back = torch.zeros_like(values)
    testing.convert(tensor, from_dlpack(back))
    assert back.tolist() == expected.tolist()

    again, again_storage = kiln_torch.cute_tensor_like(torch.zeros_like(values), kind, is_dynamic_layout=False)
    in_range = values.clamp(-limit, limit)
    assert kiln_torch.convert_cute_tensor(in_range, again, kind) is again
    assert torch.equal(again_storage, storage)


def test_wide_types_are_left_to_torch():
    values = torch.arange(6.0).reshape(2, 3)
    tensor, storage = kiln_torch.cute_tensor_like(values, kiln.BFloat16, is_dynamic_layout=True)
    assert storage.dtype is torch.bfloat16 and storage.data_ptr() != values.data_ptr()
    assert storage.float().tolist() == values.tolist()
    assert kiln_torch.convert_cute_tensor(values + 1, tensor, kiln.BFloat16) is tensor
    assert storage.float().tolist() == values.tolist()


def test_memory_behind_a_pointer_as_a_tensor():
    x = torch.arange(6, dtype=torch.bfloat16)
    pointer = make_ptr(kiln.BFloat16, x.data_ptr())
    view = kiln_torch.as_tensor(pointer, (2, 3), torch.bfloat16)
    view[1, 2] = 9
    assert x[5] == 9


def test_bytes_for_8_bit_floats():
    from kiln.utils.tensor_helpers import create_cute_tensor_for_fp8, is_fp8_dtype

    assert is_fp8_dtype(kiln.Float8E5M2) and not is_fp8_dtype(kiln.Int8)
    values = torch.tensor([[0.5, 1.0, -2.0, 300.0]])
    storage = torch.zeros(1, 4, dtype=torch.uint8)
    tensor = create_cute_tensor_for_fp8(storage, kiln.Float8E4M3FN, 1, source_f32_tensor=values)
    assert tensor.element_type is kiln.Float8E4M3FN
    single = create_cute_tensor_for_fp8(torch.zeros(1, 4), kiln.TFloat32, 1)
    assert single.element_type is kiln.TFloat32
    assert storage.view(torch.float8_e4m3fn).float().tolist() == [[0.5, 1.0, -2.0, 288.0]]
    assert create_cute_tensor_for_fp8(values, kiln.TFloat32, 1).element_type is kiln.TFloat32
