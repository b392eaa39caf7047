"""What cases take and give: arrays of PyTorch on a GPU, of numpy where there is none."""

import functools

import numpy as np

from kiln.cute.runtime import from_dlpack


@functools.cache
def on_gpu():
    """Whether PyTorch has a GPU to put arrays on. (A kernel that runs on the CPU target takes arrays of numpy.)"""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def array(values):
    """Values of numpy, where kernels run."""
    if not on_gpu():
        return np.ascontiguousarray(values)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).cuda()


def normal(shape, dtype=np.float32):
    """Standard normal numbers: zeros and small integers draw less power, and run faster than a program would."""
    if not on_gpu():
        return np.random.standard_normal(shape).astype(dtype)  # the workbench has set the seed
    import torch

    return torch.randn(shape, device="cuda", dtype=getattr(torch, np.dtype(dtype).name))


def empty(shape, dtype, like):
    """An array to write to, of numpy or PyTorch as `like` is."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype)
    import torch

    return torch.empty(shape, device=like.device, dtype=getattr(torch, np.dtype(dtype).name))


def tensor(x, align=16):
    """A tensor of static layout that begins at a multiple of so many bytes."""
    return from_dlpack(x, assumed_align=align)


def dynamic(x, align=16):
    """A tensor whose extents and strides are given at each call."""
    return from_dlpack(x, assumed_align=align).mark_layout_dynamic()
