"""Python that torch calls back, on the served device: backward functions, hooks, kernels of operators, compiled functions."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_gradients(torch_program):
    out = torch_program("""
        import torch
        seen = []

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                y = x * w
                ctx.save_for_backward(x, w, y)
                return y

            @staticmethod
            def backward(ctx, g):
                x, w, y = ctx.saved_tensors
                for t in (g, x, w, y, torch.empty_like(g), g * w, x.detach()):
                    assert t.is_cuda and t.device == torch.device("cuda", 0), t.device
                torch.cuda.get_device_properties(g.device)
                seen.append("backward")
                return g * w, (g * x).sum(0)

        def check(gradient):
            assert gradient.is_cuda
            seen.append("hook")

        x = torch.randn(2, 4, device="cuda", requires_grad=True)
        w = torch.randn(4, device="cuda", requires_grad=True)
        # what comes to it is made by torch's own functions
        y = Scale.apply(x.exp(), w)
        y.register_hook(check)
        z = (y.sin() * 2).sum()
        gx, gw = torch.autograd.grad(z, (x, w), retain_graph=True)
        assert gx.is_cuda and gw.is_cuda
        torch.testing.assert_close(gw, (2 * y.cos() * x.exp()).sum(0))
        z.backward()
        assert x.grad.is_cuda and torch.equal(x.grad, gx)
        assert seen == ["hook", "backward"] * 2, seen

        # and on the CPU it is the CPU
        class Where(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                assert g.device.type == "cpu"
                return g * 2

        c = torch.ones(3, requires_grad=True)
        Where.apply(c).sum().backward()
        print(c.grad.device, c.grad.tolist())
    """)
    assert out == "cpu [2.0, 2.0, 2.0]\n"


def test_memory_is_marked_not_the_object_alone(torch_program):
    out = torch_program("""
        import gc, torch
        module = torch.nn.Linear(3, 2).cuda()
        views = [p.data_ptr() for p in module.parameters()]
        x = torch.ones(4, device="cuda")
        storage = x.untyped_storage()
        y = torch.tensor([], dtype=torch.float32).set_(storage)  # the same memory, under a new object
        del x
        gc.collect()
        print(y.device, torch.ones(4).device, y.cpu().device, y.cpu().cuda().device)
    """)
    assert out == "cuda:0 cpu cpu cuda:0\n"


def test_operators(torch_program):
    out = torch_program("""
        import torch
        from torch import Tensor

        @torch.library.custom_op("demo::twice", mutates_args=(), device_types="cuda")
        def twice(x: Tensor) -> Tensor:
            assert x.is_cuda and torch.empty_like(x).is_cuda
            return x * 2

        @twice.register_fake
        def _(x):
            return torch.empty_like(x)

        def setup(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        def backward(ctx, g):
            assert g.is_cuda and ctx.saved_tensors[0].is_cuda
            return twice(g)

        twice.register_autograd(backward, setup_context=setup)
        x = torch.ones(2, device="cuda", requires_grad=True)
        y = twice(x)
        y.sum().backward()
        print(y.tolist(), y.device, x.grad.tolist(), x.grad.device)
        print(torch.ops.demo.twice(x.detach()).device)
        try:
            twice(torch.ones(2))
        except NotImplementedError as e:
            print("CPU" in str(e))

        @torch.library.custom_op("demo::where", mutates_args={"y"}, device_types="cpu")
        def where(x: Tensor, y: Tensor) -> None:
            y.fill_(1)

        @where.register_kernel("cuda")
        def _(x, y):
            y.fill_(2)

        a, b = torch.zeros(1), torch.zeros(1, device="cuda")
        where(torch.ones(1), a)
        where(torch.ones(1, device="cuda"), b)
        print(a.item(), b.item())

        library = torch.library.Library("demo2", "DEF")
        library.define("plus(Tensor x, int n) -> Tensor")
        library.impl("plus", lambda x, n: x + n, "CUDA")
        library.impl("plus", lambda x, n: x - n, "CPU")
        print(torch.ops.demo2.plus(b, 3).item(), torch.ops.demo2.plus(a, 3).item())

        library.define("minus(Tensor x) -> Tensor")
        @torch.library.impl("demo2::minus", "cuda")
        def _(x):
            return -x
        print(torch.ops.demo2.minus(b).item(), torch.ops.demo2.minus(b).device)

        for n in range(2):  # defined anew, as in a notebook
            @torch.library.custom_op("demo::again", mutates_args=(), device_types="cuda")
            def again(x: Tensor) -> Tensor:
                return x + 10 * n
        print(again(b).item())
    """)
    assert out.splitlines() == [
        "[2.0, 2.0] cuda:0 [2.0, 2.0] cuda:0",
        "cuda:0",
        "True",
        "1.0 2.0",
        "5.0 -2.0",
        "-2.0 cuda:0",
        "12.0",
    ]


def test_operators_of_any_device(torch_program):
    """Torch calls them where the mode is not active, under a key of no device."""
    out = torch_program("""
        import torch
        from torch import Tensor

        @torch.library.custom_op("any::twice", mutates_args=())
        def twice(x: Tensor) -> Tensor:
            print(x.device, torch.empty_like(x).device, torch.empty(1, device=x.device).device)
            return x * 2

        @torch.library.custom_op("any::fill", mutates_args={"x"})
        def fill(x: Tensor) -> None:
            x.fill_(3 if x.is_cuda else 4)

        twice.register_autograd(lambda ctx, g: twice(g))
        on_gpu, on_host = torch.ones(2, device="cuda", requires_grad=True), torch.ones(2)
        y = twice(on_gpu)
        y.sum().backward()
        print(y.device, on_gpu.grad.device, twice(on_host).device)
        a, b = torch.zeros(1), torch.zeros(1, device="cuda")
        fill(a)
        fill(b)

        @fill.register_kernel("cuda")
        def _(x):
            x.fill_(5)

        c = torch.zeros(1, device="cuda")
        fill(c)
        print(b.item(), c.item(), a.item())
        fill(a)
        print(a.item())

        library = torch.library.Library("any2", "DEF")
        library.define("plus(Tensor x) -> Tensor")
        library.impl("plus", lambda x: x + torch.ones(1, device=x.device), "CompositeImplicitAutograd")
        print(torch.ops.any2.plus(b).device, torch.ops.any2.plus(a).device)
    """)
    assert out.splitlines() == [
        "cuda:0 cuda:0 cuda:0",
        "cuda:0 cuda:0 cuda:0",
        "cpu cpu cpu",
        "cuda:0 cuda:0 cpu",
        "3.0 5.0 4.0",
        "4.0",
        "cuda:0 cpu",
    ]


def test_compiled_functions_and_modules(torch_program):
    out = torch_program("""
        import torch

        @torch.compile(fullgraph=True, backend="eager")
        def f(x):
            assert x.is_cuda and x.dim() >= 1
            return torch.empty_like(x).copy_(x * 2)

        x = torch.ones(2, device="cuda")
        print(f(x).tolist(), f(x).device, f.__name__)
        g = torch.compile(lambda x, n=1: x + n, mode="reduce-overhead", dynamic=True)
        print(g(x, n=3).tolist())
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).cuda()
        fast = torch.compile(model)
        assert torch.equal(fast(x), model(x)) and fast._orig_mod is model
        assert len(list(fast.parameters())) == 2
        model.compile()
        print(model(x).device)
    """)
    assert out == "[2.0, 2.0] cuda:0 f\n[4.0, 4.0]\ncuda:0\n"


def test_products_of_halves_are_rounded_once(torch_program):
    out = torch_program("""
        import torch, torch.nn.functional as F
        torch.manual_seed(0)
        for dtype in (torch.float16, torch.bfloat16):
            make = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype)
            a, b, c, v = make(3, 33, 257), make(3, 257, 65), make(3, 33, 65), make(257)
            A, B, C, V = (t.float() for t in (a, b, c, v))
            out = torch.empty_like(c)
            given = torch.matmul(a, b, out=out)
            assert given is out
            changed = c[0].clone()
            changed.addmm_(a[0], b[0], beta=0.5)
            pairs = {
                "@": (a @ b, A @ B),
                "matmul": (torch.matmul(a, v), torch.matmul(A, V)),
                "mm": (a[0].mm(b[0]), A[0] @ B[0]),
                "bmm": (torch.bmm(a, b), A @ B),
                "einsum": (torch.einsum("bik,bkj->bij", a, b), torch.einsum("bik,bkj->bij", A, B)),
                "einsum of a list": (torch.einsum("bik,bkj->bij", [a, b]), torch.einsum("bik,bkj->bij", A, B)),
                "linear": (F.linear(a, b[0].t(), c[0, 0]), F.linear(A, B[0].t(), C[0, 0])),
                "addmm": (torch.addmm(c[0], a[0], b[0], alpha=2), torch.addmm(C[0], A[0], B[0], alpha=2)),
                "baddbmm": (torch.baddbmm(c, a, b), torch.baddbmm(C, A, B)),
                "mv": (a[0].mv(v), A[0].mv(V)),
                "dot": (torch.dot(a[0, 0], v), torch.dot(A[0, 0], V)),
                "out": (out, A @ B),
                "in place": (changed, torch.addmm(C[0], A[0], B[0], beta=0.5)),
            }
            for name, (got, wide) in pairs.items():
                assert got.is_cuda and got.dtype is dtype, name
                assert torch.equal(got, wide.to(dtype)), name
            a.requires_grad_(True)
            (a @ b).sum().backward()
            assert a.grad.dtype is dtype and a.grad.is_cuda
        print("done")
    """)
    assert out == "done\n"


@pytest.mark.quick(0)
def test_functions_that_are_applied_by_c(child, tmp_path):
    """From torch 2.15 on `Function.apply` is a descriptor of C, without a function of Python inside."""
    (tmp_path / "program.py").write_text(
        """
import torch

plain = torch.autograd.Function.__dict__["apply"]

class OfC:
    def __get__(self, instance, cls):
        return plain.__get__(instance, cls)

torch.autograd.Function.apply = OfC()

from kiln.workbench import serve_cuda

serve_cuda.activate()

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.is_cuda
        return gradient * 2

x = torch.ones(3, device="cuda", requires_grad=True)
y = Twice.apply(x)
y.sum().backward()
print(y.device, x.grad.device, x.grad.tolist())
"""
    )
    done = child("program.py")
    assert done.stdout.split("\n")[0] == "cuda:0 cuda:0 [2.0, 2.0, 2.0]", done.stdout + done.stderr


def test_flex_attention(torch_program):
    torch_program("""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def exact(q, k, v, g, bias):
            q, k, v = (x.detach().cpu().double().requires_grad_() for x in (q, k, v))
            s = q @ k.transpose(-1, -2) / 4 + bias.cpu().double()
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=bool).tril(), -torch.inf)
            o = torch.softmax(s, -1) @ v
            return [o, *torch.autograd.grad(o, (q, k, v), g.cpu().double())]

        q, k, v = (torch.randn(1, 2, 32, 16, device="cuda", requires_grad=True) for _ in range(3))
        bias = torch.randn(32, device="cuda")
        mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 32, 32, device="cuda")
        assert mask.kv_num_blocks.is_cuda and mask.full_kv_indices.is_cuda
        assert not create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 32, 32, "cpu").kv_num_blocks.is_cuda

        o = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j], block_mask=mask)
        g = torch.randn_like(o)
        for got, wanted in zip([o, *torch.autograd.grad(o, (q, k, v), g)], exact(q, k, v, g, bias)):
            assert got.is_cuda
            torch.testing.assert_close(got.detach().cpu().double(), wanted.detach(), atol=1e-5, rtol=1e-4)

        bias.requires_grad_()
        try:
            flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j])
        except NotImplementedError as e:
            assert "'bias'" in str(e), e
        else:
            raise AssertionError("a gradient that nobody computes")
    """)
