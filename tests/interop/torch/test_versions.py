"""Versions of tensors that kernels write to: autograd refuses a gradient from a saved tensor that was overwritten."""

import pytest

import kiln.cute as cute
from kiln import Float32, kernels
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    i, _, _ = cute.arch.thread_idx()
    if i < x.shape[0]:
        y[i] = x[i] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32):
    scaled(x, y, by).launch(grid=1, block=32)


@cute.jit
def scale_pair(tensors: list, by: Float32):
    scaled(tensors[0], tensors[1], by).launch(grid=1, block=32)


def saved():
    """Return an input, and a tensor that autograd keeps for its gradient: exp saves its result."""
    x = torch.zeros(8, requires_grad=True)
    return x, x.exp()


def compiled(x, y, by):
    return cute.compile(scale, x, y, by)(x, y, by)


CALLS = {
    "jit": lambda x, y: scale(x, y, 2.0),
    "compiled": lambda x, y: compiled(x, y, 2.0),
    "from_dlpack": lambda x, y: scale(from_dlpack(x), from_dlpack(y), 2.0),
    "list": lambda x, y: scale_pair([x, y], 2.0),
    "kernel library": lambda x, y: kernels.softmax(x[None], out=y[None]),
}


@pytest.mark.parametrize("name", CALLS)
def test_autograd_notices_writes_of_kernels(name):
    """Python takes the first calls, native code later ones: each raises the version of what is written, once."""
    call, source, target = CALLS[name], torch.ones(8), torch.ones(8)
    for number in range(6):
        call(source, target)
        assert target._version == number + 1, number
        assert source._version == 0, number
    x, y = saved()
    call(torch.ones(8), y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_reading_keeps_the_version():
    x, y = saved()
    for _ in range(4):
        scale(y.detach(), torch.empty(8), 2.0)
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 8


def test_tensors_of_inference_mode_have_no_version():
    with torch.inference_mode():
        x, y = torch.ones(8), torch.zeros(8)
        for _ in range(4):
            scale(x, y, 2.0)
    for _ in range(4):
        scale(x, y, 3.0)
    assert y.tolist() == [3.0] * 8


@cute.kernel
def through_values(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: cute.Int32, swap: cute.Boolean):
    """Write to y or z, through a pointer that a branch chooses and a loop carries."""
    at = y.iterator
    if swap:
        at = z.iterator
    for _ in range(n):
        at += 1
    cute.make_tensor(at, cute.make_layout(1))[0] = x[0]


@cute.jit
def write_through(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor, n: cute.Int32, swap: cute.Boolean):
    through_values(x, y, z, n, swap).launch(grid=1, block=1)


@cute.kernel
def counted(x: cute.Tensor, y: cute.Tensor):
    cute.arch.atomic_add(y.iterator, x[0])


@cute.jit
def count(x: cute.Tensor, y: cute.Tensor):
    counted(x, y).launch(grid=1, block=1)


def test_writes_are_followed_through_branches_loops_and_atomics():
    x, y, z = (torch.ones(8) for _ in range(3))
    write_through(x, y, z, 2, True)
    assert (x._version, y._version, z._version) == (0, 1, 1) and z.tolist()[2] == 1
    count(x, y)
    assert (x._version, y._version) == (0, 2) and y.tolist()[0] == 2
