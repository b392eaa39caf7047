"""Operators whose calls native code takes once Python has taken one of their kind, on the CPU target."""

import threading

import pytest

import kiln.cute as cute
from kiln import Constexpr, Float32, Int32

torch = pytest.importorskip("torch")
kt = pytest.importorskip("kiln.torch")
dispatch = pytest.importorskip("kiln.interop.torch.dispatch")
needs_native = pytest.mark.skipif(dispatch.dispatcher() is None, reason="Python takes the calls of operators here")
shift = 1.0


@cute.kernel
def moved(x: cute.Tensor, y: cute.Tensor, by: Float32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[1]:
        y[block, thread] = (x[block, thread] * by + shift).to(y.element_type)


@cute.jit
def move(x: cute.Tensor, y: cute.Tensor, by: Float32):
    moved(x, y, by).launch(grid=x.shape[0], block=64)


def counted(op):
    """Calls of an operator that Python takes, noted in a list."""
    calls, run = [], op._run

    def noting(*args, **kwargs):
        calls.append(args)
        return run(*args, **kwargs)

    op._run = noting
    return calls


def matrix(rows=3, columns=4, dtype=None):
    return torch.arange(float(rows * columns)).reshape(rows, columns).to(dtype)


@needs_native
def test_python_takes_one_call_of_a_kind():
    op = kt.op("kiln_native::move", move, outputs={"y": "x"})
    calls = counted(op)
    kinds = [matrix(), matrix(3, 7), matrix().T, matrix(dtype=torch.float64), matrix(5, 5).T[:4]]
    for _ in range(3):
        for x in kinds:
            assert torch.equal(op(x, 2.0), 2 * x + 1) and op(x, 2.0).stride() == torch.empty_like(x).stride()
    assert (
        len(calls) <= 4 + 2 * 3
    )  # rows of 7 are compiled once more; the last one has gaps: only Python makes a tensor like it
    before = len(calls)
    for rows in range(1, 20):
        x = matrix(rows, 7)
        assert torch.equal(torch.ops.kiln_native.move(x, float(rows)), rows * x + 1)
    assert len(calls) == before


@needs_native
def test_operators_look_at_the_alignment_of_each_call():
    op = kt.op("kiln_native::aligned_move", move, outputs={"y": "x"})
    calls = counted(op)
    base = matrix(4, 16)
    views = [base, base[:, 1:9], base[:, 4:12], matrix(4, 7)]
    for _ in range(3):
        for x in views:
            assert torch.equal(op(x, 2.0), 2 * x + 1)
    before = len(calls)
    compiled = torch.compile(lambda x: op(x, 3.0), backend="eager")
    for x in (base, matrix(4, 7)):
        assert torch.equal(compiled(x), 3 * x + 1)
    assert len(calls) == before


@needs_native
def test_what_the_kernel_read_is_looked_at():
    global shift
    op = kt.op("kiln_native::shifted", move, outputs={"y": "x"})
    x = matrix()
    for shift in (1.0, 5.0, 1.0):
        assert all(torch.equal(op(x, 3.0), 3 * x + shift) for _ in range(3))
    calls = counted(op)
    move.retrace()
    assert torch.equal(op(x, 3.0), 3 * x + 1) and len(calls) == 1


@needs_native
def test_shapes_of_outputs_lists_optional_ones_and_constants():
    @cute.kernel
    def outer(xs: list, bias, y: cute.Tensor, negative: Constexpr):
        i, _, _ = cute.arch.thread_idx()
        for j in range(xs[1].shape[0]):
            product = xs[0][i] * xs[1][j]
            y[i, j, 0] = (-product if negative else product) + (0.0 if bias is None else bias[0])

    @cute.jit
    def launch(
        xs: list[cute.Tensor], x: cute.Tensor, w: cute.Tensor, n: Int32, y: cute.Tensor,
        bias: cute.Tensor | None = None, negative: Constexpr[bool] = False,
    ):  # fmt: skip
        outer(xs, bias, y, negative).launch(grid=1, block=3)

    op = kt.op("kiln_native::outer", launch, outputs={"y": ("x.0", "w.0", "n", torch.float32)})
    assert op.schema == "(Tensor[] xs, Tensor x, Tensor w, SymInt n, Tensor? bias=None, bool negative=False) -> Tensor"
    calls = counted(op)
    x, w = torch.arange(3.0), torch.arange(5.0)
    for _ in range(3):
        for bias in (None, torch.ones(1)):
            for negative in (False, True):
                wanted = (-1 if negative else 1) * torch.outer(x, w) + (0 if bias is None else 1)
                assert torch.equal(op([x, w], x, w, 1, bias, negative), wanted[:, :, None])
    assert len(calls) == 4
    assert op([x, w], x, w, 2).shape == (3, 5, 2)


@needs_native
def test_tensors_are_given_back():
    op = kt.op("kiln_native::kept", move, outputs={"y": "x"})
    x = matrix()
    y = op(x, 1.0)
    before = x._use_count()
    for _ in range(50):
        y = op(x, 1.0)
    assert x._use_count() == before and y._use_count() == op(x, 1.0)._use_count()


@needs_native
def test_threads_call_at_once():
    op = kt.op("kiln_native::threads", move, outputs={"y": "x"})
    op(matrix(), 1.0)
    wrong = []

    def call(number):
        x = matrix(number + 1)
        for _ in range(200):
            if not torch.equal(op(x, float(number)), number * x + 1):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@cute.jit
def refuse(x: cute.Tensor, y: cute.Tensor):
    assert x.shape[0] < 3, "too long"
    moved(x, y, 1.0).launch(grid=x.shape[0], block=64)


@pytest.mark.parametrize("natively", [True, False])
def test_errors_have_their_text(natively, monkeypatch, capfd):
    if not natively:
        monkeypatch.setattr(dispatch, "dispatcher", lambda: None)
    op = kt.op(f"kiln_native::refuse_{natively}", refuse, outputs={"y": "x"})
    for _ in range(3):
        assert torch.equal(op(matrix(2)), matrix(2) + 1)
        with pytest.raises(RuntimeError, match="too long"):
            op(matrix(3))
    assert torch.equal(op(matrix(1)), matrix(1) + 1)
    assert capfd.readouterr() == ("", "")


def test_gradients():
    op = kt.op("kiln_native::both", move, outputs={"y": "x"}, backward=lambda by, g: (op(g, by) - 1,), save=("by",))
    x = matrix().requires_grad_()
    assert op(x, 2.0).requires_grad and not op(matrix(), 2.0).requires_grad
    with torch.no_grad():
        assert not op(x, 2.0).requires_grad
    with torch.inference_mode():
        assert torch.equal(op(x, 2.0), 2 * x + 1)
    for call in (op, op.default, torch.compile(op, backend="eager", fullgraph=True)):
        x.grad = None
        y = call(x, 2.0)
        (once,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        once.sum().backward()
        assert torch.equal(once, 4 * (2 * x + 1)) and torch.equal(x.grad, torch.full((3, 4), 8.0))


class Looking(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Overriding(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Special(torch.Tensor):
    pass


def under(context):
    def call(op, x):
        with context:
            return op(x, 2.0)

    return call


def traced(op, x):
    return torch.jit.trace(lambda x: op(x, 2.0), (x,), check_trace=False)(x)


@needs_native
@pytest.mark.parametrize(
    "call",
    [
        under(Looking()),
        under(Overriding()),
        under(torch.autocast("cpu", torch.bfloat16)),
        under(torch.profiler.profile()),
        lambda op, x: torch.vmap(lambda x: op(x, 2.0))(x[None])[0],
        lambda op, x: torch.func.functionalize(lambda x: op(x, 2.0))(x),
        lambda op, x: op(x.as_subclass(Special), 2.0),
        lambda op, x: op(torch.complex(x, -x).conj().imag, 2.0),
        traced,
    ],
)
def test_the_dispatcher_takes_calls_that_it_would_change(call, direct):
    op, through = direct
    assert torch.equal(call(op, matrix()).detach(), 2 * matrix() + 1)
    assert through


@needs_native
def test_other_calls_go_round_the_dispatcher(direct):
    op, through = direct
    x = matrix().requires_grad_()
    with torch.no_grad():
        assert torch.equal(op(x, 2.0), 2 * x + 1)
    with torch.inference_mode():
        assert torch.equal(op(x, 2), 2 * x + 1)
    assert op(x.detach(), by=2).requires_grad is False and not through
    assert op(torch.nn.Parameter(matrix(), False), 3.0).sum() == 3 * 66 + 12 and not through
    assert op(x).requires_grad and torch.autograd.grad(op(x).sum(), x)[0].sum() == 12 and not through


@pytest.fixture(scope="module")
def directly_called():
    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, by: Float32 = 2.0):
        moved(x, y, by).launch(grid=x.shape[0], block=64)

    op = kt.op("kiln_native::direct", launch, outputs={"y": "x"}, backward=lambda g: (g,))
    op(matrix(), 2.0)
    return op


@pytest.fixture
def direct(directly_called, monkeypatch):
    """An operator that was called before, and notes of its calls that the dispatcher takes."""
    through, default = [], directly_called.default
    monkeypatch.setattr(directly_called, "default", lambda *args, **named: through.append(1) or default(*args, **named))
    return directly_called, through


def test_kernels_go_to_the_device_of_the_tensors(monkeypatch):
    """With two devices: there is none here, so only who is asked for what is looked at."""
    from kiln.interop.torch import operators

    entered = []

    class Entered:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *_):
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Entered)
    with operators._on(torch.device("cuda", 1)):
        assert entered == [torch.device("cuda", 1)]
    with operators._on(torch.device("cuda", 0)):
        assert len(entered) == 2
