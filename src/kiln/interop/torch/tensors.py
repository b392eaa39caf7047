"""PyTorch tensors for programs: element types, streams, tensors with known contents, and tensors like others.

Types that torch lacks or cannot compute with (8-bit floats and narrower) are stored in tensors of bytes. They are
converted on the host: rounded to nearest even, and saturated at the largest finite value.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Float8E4M3FN, Float8E5M2, Float8E8M0FNU
from ...cute.host.arrays import torch_dtype
from ...cute.runtime import from_dlpack
from ...cute.tensor.pointer import AddressSpace

__all__ = [
    "GaussianInitConfig",
    "RandomInitConfig",
    "ScalarInitConfig",
    "TensorInitType",
    "as_tensor",
    "convert_cute_tensor",
    "create_and_permute_torch_tensor",
    "create_cute_tensor_for_fp8",
    "current_stream",
    "cute_tensor_like",
    "default_stream",
    "dtype",
    "from_dlpack",
    "get_leading_dim",
    "matrix",
]


def dtype(ty: object) -> torch.dtype:
    """Return the torch dtype of `ty`, a numeric type. Two Float4E2M1FN make one element of torch."""
    return torch_dtype(ty)


def _is_narrow(ty: Any) -> bool:
    """Return whether values of the type are stored in bytes: torch cannot fill tensors of it, or compute with them."""
    return (ty.width < 8 and ty is not Boolean) or (ty.is_float and ty.width == 8)


# --- streams ---------------------------------------------------------------------------------------------------------


def current_stream() -> Any:
    """Return torch's current stream, as `CUstream` of cuda-bindings."""
    from ...cuda import stream

    return stream(torch.cuda.current_stream().cuda_stream)


def default_stream() -> Any:
    """Return torch's default stream, as `CUstream` of cuda-bindings."""
    from ...cuda import stream

    return stream(torch.cuda.default_stream().cuda_stream)


# --- tensors with known contents -------------------------------------------------------------------------------------


class TensorInitType(enum.Enum):
    """The way in which a new tensor is filled."""

    SKIP = "skip"
    SCALAR = "scalar"
    RANDOM = "random"
    GAUSSIAN = "gaussian"


@dataclasses.dataclass
class RandomInitConfig:
    """Integers from `min_val` up to `max_val`, which is excluded, each as likely, as `torch.Tensor.random_` draws."""

    min_val: int = -2
    max_val: int = 2


@dataclasses.dataclass
class ScalarInitConfig:
    """Fill the tensor with one value."""

    value: float = 0.0


@dataclasses.dataclass
class GaussianInitConfig:
    """`scale` times normally distributed numbers."""

    mean: float = 0.0
    std: float = 1.0
    scale: float = 1.0


_CONFIGS = {
    TensorInitType.RANDOM: RandomInitConfig,
    TensorInitType.SCALAR: ScalarInitConfig,
    TensorInitType.GAUSSIAN: GaussianInitConfig,
}


def create_and_permute_torch_tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    permute_order: tuple[int, ...] | None = None,
    init_type: TensorInitType = TensorInitType.RANDOM,
    init_config: RandomInitConfig | ScalarInitConfig | GaussianInitConfig | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return a new tensor, compact in the order of `shape`, with its modes then permuted.

    Args:
        shape: the extents before the permutation.
        dtype: the torch dtype.
        permute_order: the order of the modes in the result; None keeps them.
        init_type: how it is filled: `TensorInitType.RANDOM`, `SCALAR`, `GAUSSIAN` or `SKIP`.
        init_config: the numbers for that, a `RandomInitConfig` for `RANDOM` and so on, else TypeError is raised.
        device: the torch device.
    """
    if init_type is TensorInitType.SKIP:
        tensor = torch.empty(*shape, dtype=dtype, device=device)
    else:
        kind = _CONFIGS[init_type]
        config = kind() if init_config is None else init_config
        if not isinstance(config, kind):
            raise type_error(
                f"init_config is a {type(config).__name__} and init_type is {init_type.name}", f"pass a {kind.__name__}"
            )
        tensor = _filled(shape, config, dtype, device).to(dtype)
    return tensor if permute_order is None else tensor.permute(permute_order)


def _filled(shape: tuple[int, ...], config: Any, dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    if isinstance(config, ScalarInitConfig):
        return torch.full(shape, config.value, dtype=torch.float64, device=device)
    if isinstance(config, GaussianInitConfig):
        return torch.empty(*shape, dtype=torch.float32, device=device).normal_(config.mean, config.std) * config.scale
    low = config.min_val
    high = config.max_val
    if not (dtype.is_signed or dtype.is_floating_point) and low < 0:
        low, high = 0, high - low
    return torch.randint(low, max(high, low + 1), shape, dtype=torch.int32, device=device)


def matrix(
    l: int,
    mode0: int,
    mode1: int,
    is_mode0_major: bool,
    cutlass_dtype: object,
    init_type: TensorInitType = TensorInitType.RANDOM,
    init_config: RandomInitConfig | ScalarInitConfig | GaussianInitConfig | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return `l` matrices as a torch tensor of shape (`mode0`, `mode1`, `l`), the batch slowest.

    Types that torch cannot compute with have float32 values, which `cute_tensor_like` converts.

    Args:
        l: how many matrices.
        mode0: rows, M or N.
        mode1: columns, K or N.
        is_mode0_major: `mode0` is contiguous (column-major), else `mode1`.
        cutlass_dtype: the element type, such as `Float16`.
        init_type: how it is filled: `TensorInitType.RANDOM`, `SCALAR`, `GAUSSIAN` or `SKIP`.
        init_config: the numbers for that; by default small integers.
        device: the torch device.
    """
    shape = (l, mode1, mode0) if is_mode0_major else (l, mode0, mode1)
    order = (2, 1, 0) if is_mode0_major else (1, 2, 0)
    kind = torch.float32 if _is_narrow(cutlass_dtype) else dtype(cutlass_dtype)
    if init_config is None and init_type is TensorInitType.RANDOM and _is_unsigned(cutlass_dtype):
        init_config = RandomInitConfig(0, 4)
    return create_and_permute_torch_tensor(shape, kind, order, init_type, init_config, device)


def _is_unsigned(ty: Any) -> bool:
    return ty is Float8E8M0FNU or (ty.is_integer and not ty.signed)


def get_leading_dim(torch_tensor: torch.Tensor) -> int:
    """Return the dimension of `torch_tensor` with stride 1; of several, the last whose extent is not 1.

    Raises TypeError if there is none.
    """
    ones = [i for i, stride in enumerate(torch_tensor.stride()) if stride == 1]
    longer = [i for i in ones if torch_tensor.shape[i] != 1]
    if not ones:
        raise type_error(f"no dimension of strides {tuple(torch_tensor.stride())} has stride 1")
    return (longer or ones)[-1]


# --- tensors like others ---------------------------------------------------------------------------------------------


def cute_tensor_like(
    data_ref: torch.Tensor,
    cutlass_dtype: Any,
    is_dynamic_layout: bool,
    assumed_align: int | None = None,
    enable_tvm_ffi: bool = False,
) -> tuple[Any, torch.Tensor]:
    """Return a tensor for kernels with the values and the layout of a torch tensor, and the torch tensor with its
    memory.

    It is on the GPU, or on the host if there is none. For types that torch cannot compute with the memory has a byte
    for each element; elements of less than a byte are packed along the leading dimension, at the start of that memory.

    Args:
        data_ref: the values.
        cutlass_dtype: the element type that they are converted to.
        is_dynamic_layout: make extents and strides dynamic, but for the leading stride of 1.
        assumed_align: the alignment in bytes that the address promises; by default that of an element.
        enable_tvm_ffi: accepted as in CuTe DSL, without effect.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    packed = None
    if _is_narrow(cutlass_dtype):
        data = _to_bytes(data_ref, cutlass_dtype)
        storage = torch.zeros_like(data_ref, dtype=torch.uint8, device=device)
        packed = torch.as_strided(storage, data.shape, data.stride()).copy_(data)
    else:
        storage = torch.empty_strided(
            data_ref.shape, data_ref.stride(), dtype=dtype(cutlass_dtype), device=device
        ).copy_(data_ref)
    tensor = from_dlpack(storage if packed is None else packed, assumed_align=assumed_align)
    if tensor.element_type is not cutlass_dtype:
        tensor.element_type = cutlass_dtype
    if is_dynamic_layout:
        tensor = tensor.mark_layout_dynamic(leading_dim=get_leading_dim(data_ref))
    return tensor, storage


def convert_cute_tensor(
    f32_torch_tensor: torch.Tensor,
    cute_tensor: Any,
    dtype: object,
    is_dynamic_layout: bool = True,
    enable_tvm_ffi: bool = False,
) -> Any:
    """Write float32 values into a tensor of a type that torch cannot compute with, and return the tensor.

    Args:
        f32_torch_tensor: the values, in the shape of `cute_tensor`, else TypeError is raised.
        cute_tensor: the tensor to write.
        dtype: its element type; tensors of types that torch can fill are returned as they are.
        is_dynamic_layout: compile the conversion for dynamic extents.
        enable_tvm_ffi: accepted as in CuTe DSL, without effect.
    """
    if not _is_narrow(dtype):
        return cute_tensor
    if tuple(f32_torch_tensor.shape) != tuple(cute_tensor.shape):
        raise type_error(f"values of shape {tuple(f32_torch_tensor.shape)} for a tensor of shape {cute_tensor.shape}")
    from ...cute.testing import convert

    device = "cuda" if cute_tensor.memspace is AddressSpace.gmem else "cpu"
    values = torch.empty_strided(
        f32_torch_tensor.shape, f32_torch_tensor.stride(), dtype=torch.float32, device=device
    ).copy_(f32_torch_tensor)
    source = from_dlpack(values)
    if is_dynamic_layout:
        source = source.mark_layout_dynamic(leading_dim=get_leading_dim(values))
    convert(source, cute_tensor)
    return cute_tensor


def create_cute_tensor_for_fp8(
    storage_tensor: object,
    dtype: Any,
    leading_dim: int,
    source_f32_tensor: object = None,
    assumed_align: int = 16,
    mark_dynamic_layout: bool = True,
) -> Any:
    """Return a tensor for kernels on the memory of a torch tensor, also for types that torch does not have.

    Args:
        storage_tensor: the torch tensor with the memory; bytes for 8-bit floats.
        dtype: the element type, of the same width (TFloat32 in float32).
        leading_dim: the dimension with stride 1.
        source_f32_tensor: values to convert into an 8-bit float tensor.
        assumed_align: the alignment in bytes that the address promises.
        mark_dynamic_layout: make extents and strides dynamic, but for the leading stride of 1.
    """
    tensor = from_dlpack(storage_tensor, assumed_align=assumed_align)
    if dtype is not None and tensor.element_type is not dtype and tensor.element_type.width == dtype.width:
        tensor.element_type = dtype
    if mark_dynamic_layout:
        tensor = tensor.mark_layout_dynamic(leading_dim=leading_dim)
    if dtype in (Float8E4M3FN, Float8E5M2) and source_f32_tensor is not None:
        tensor = convert_cute_tensor(source_f32_tensor, tensor, dtype)
    return tensor


def _to_bytes(values: torch.Tensor, ty: Any) -> torch.Tensor:
    """Return values of a narrow type as bytes on the host, packed along the leading dimension of `values`."""
    import numpy

    rounded = _rounded(values.detach().cpu().to(torch.float32), ty)
    if ty.width == 8:
        return torch.empty_strided(values.shape, values.stride(), dtype=torch.uint8).copy_(torch.from_numpy(rounded))
    if ty.width != 4:
        raise TypeError(f"{ty.__name__} elements of {ty.width} bits have no layout in torch")
    leading = get_leading_dim(values)
    if values.shape[leading] % 2:
        raise type_error(f"{values.shape[leading]} elements of 4 bits are not whole bytes")
    pairs = numpy.moveaxis(rounded, leading, -1) & 0xF
    packed = numpy.moveaxis(pairs[..., 0::2] | (pairs[..., 1::2] << 4), -1, leading)
    strides = [stride if i == leading else stride // 2 for i, stride in enumerate(values.stride())]
    shape = list(packed.shape)
    return torch.empty_strided(shape, strides, dtype=torch.uint8).copy_(torch.from_numpy(packed))


def _rounded(values: torch.Tensor, ty: Any) -> Any:
    """Return the bit patterns of values, one to a byte, as a numpy array."""
    import ml_dtypes
    import numpy

    if ty.is_integer:
        low, high = (-(1 << ty.width - 1), (1 << ty.width - 1) - 1) if ty.signed else (0, (1 << ty.width) - 1)
        return numpy.clip(numpy.rint(values.numpy()), low, high).astype(numpy.int8).view(numpy.uint8)
    kind = getattr(ml_dtypes, ty._numpy_name)
    limits = ml_dtypes.finfo(kind)
    clipped = numpy.clip(values.numpy(), float(limits.min), float(limits.max))
    return clipped.astype(kind).view(numpy.uint8)


def as_tensor(pointer: Any, shape: Any, torch_type: torch.dtype) -> torch.Tensor:
    """Return a row-major torch tensor on given memory, which must outlive it.

    Args:
        pointer: the address, an int or a pointer.
        shape: the extents.
        torch_type: the torch dtype.
    """
    import ctypes
    import math

    from ...base_dsl.target import target_name

    address = pointer if isinstance(pointer, int) else int(pointer.toint() if hasattr(pointer, "toint") else pointer)
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    size = math.prod(extents) * torch_type.itemsize
    if target_name() == "cpu":
        data = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
    else:
        data = torch.as_tensor(_DeviceBytes(address, size), device="cuda")
    return data.view(torch_type).view(extents)


class _DeviceBytes:
    """Bytes on a GPU, for libraries that know CUDA's array interface."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
