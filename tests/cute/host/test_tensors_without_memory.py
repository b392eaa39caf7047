"""Tensors of PyTorch whose elements are not in memory: a call refuses them, also after calls with others."""

from __future__ import annotations

import pytest

import kiln
import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:a tensor that requires grad")]


@cute.kernel
def add_one_kernel(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    y[t] = x[t] + 1


@cute.jit
def add_one(x: cute.Tensor, y: cute.Tensor):
    add_one_kernel(x, y).launch(grid=1, block=4)


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    def __init__(self, x):
        self.inner = x

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


def functional(x):
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(x)


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


KINDS = {
    "FakeTensor": fake,
    "FakeTensor in a Parameter": lambda x: torch.nn.Parameter(fake(x), requires_grad=False),
    "'meta'": lambda x: x.to("meta"),
    "Wrapper": Wrapper,
    "Tensor": torch._to_functional_tensor,
    "FunctionalTensor": functional,
    "Tensor of torch has no memory": freed,
    "UninitializedParameter": lambda x: torch.nn.UninitializedParameter(requires_grad=False),
    "sparse_coo": lambda x: x.to_sparse(),
    "Tensor of torch cannot be read": lambda x: torch.nested.nested_tensor([x, x[:2]]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_call_refuses(kind):
    x, y = torch.arange(4.0), torch.zeros(4)
    compiled = cute.compile(add_one, x, y)
    for _ in range(3):
        add_one(x, y)
    assert y.tolist() == [1, 2, 3, 4]
    lacking = KINDS[kind](x)
    for call in (
        lambda: add_one(lacking, y),
        lambda: add_one(x, lacking),
        lambda: compiled(lacking, y),
        lambda: add_one(from_dlpack(lacking), y),
        lambda: cute.compile(add_one, from_dlpack(x), from_dlpack(y))(from_dlpack(lacking), from_dlpack(y)),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=kind.partition(" in ")[0]):
            call()
    add_one(x, y)


def test_tensors_under_transformations_of_functions():
    x, y = torch.arange(4.0), torch.zeros(4)

    def run(v):
        add_one(v, y)
        return v.sum()

    for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)Tensor of torch.*kiln\.torch\.op"):
            transform(run)(torch.stack([x, x]))


def test_a_trace_of_pytorch():
    from torch.fx.experimental.proxy_tensor import make_fx

    y = torch.zeros(4)
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)FakeTensor has no memory.*kiln\.torch\.op"):
        make_fx(lambda v: (add_one(v, y), v)[1], tracing_mode="fake")(torch.arange(4.0))


def test_functions_of_the_library():
    for make in (fake, Wrapper, torch._to_functional_tensor, freed):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="no memory of its own"):
            kiln.kernels.softmax(make(torch.ones(4, 4)))
    x = torch.ones(4, 8)
    for _ in range(4):
        kiln.kernels.softmax(x)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="no memory of its own"):
        kiln.kernels.softmax(freed(x))


@cute.jit
def fill(x: cute.Tensor, n: cute.Int32):
    for i in range(n):
        x[i] = 1.0


def test_tensors_without_elements_need_no_memory():
    empty = torch.zeros(0)
    assert empty.data_ptr() == 0
    for _ in range(3):
        fill(empty, 0)
        fill(from_dlpack(empty).mark_layout_dynamic(), 0)


def test_a_tensor_keeps_the_memory_of_one_that_got_another():
    x = torch.ones(1 << 16)
    tensors = [from_dlpack(x) for _ in range(3)]
    x.data = torch.zeros(4)
    junk = [torch.full((1 << 16,), 5.0) for _ in range(8)]
    for tensor in tensors:
        assert (torch.from_dlpack(tensor) == 1).all()
    assert junk
