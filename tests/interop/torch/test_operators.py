"""Kernels as operators of PyTorch, on the CPU target."""

import pytest

import kiln.cute as cute
from kiln import Boolean, Constexpr, Float32, Int32

torch = pytest.importorskip("torch")
kt = pytest.importorskip("kiln.torch")


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[1]:
        y[block, thread] = x[block, thread] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32 = 2.0, stream=None):
    scaled(x, y, by).launch(grid=x.shape[0], block=64, stream=stream)


@cute.jit
def count(y: cute.Tensor, n: Int32):
    scaled(y, y, 1.0).launch(grid=1, block=64)


def times(by, gradient):
    return (scaling(gradient, by),)


scaling = kt.op("kiln_tests::scale", scale, outputs={"y": "x"}, backward=times, save=("by",))


def matrix(rows=3, columns=4):
    return torch.arange(float(rows * columns)).reshape(rows, columns)


def test_the_schema_is_that_of_the_function():
    assert scaling.schema == "(Tensor x, float by=2.0) -> Tensor"
    x = matrix()
    assert torch.equal(scaling(x), 2 * x) and torch.equal(torch.ops.kiln_tests.scale(x, by=3.0), 3 * x)


@pytest.mark.parametrize("x", [matrix(), matrix().T, matrix()[:, ::2], matrix(1, 1), matrix().expand(3, 4)])
def test_it_passes_the_checks_of_torch(x):
    results = torch.library.opcheck(scaling.default, (x, 2.0))
    assert set(results.values()) == {"SUCCESS"}
    assert torch.equal(scaling(x, 2.0), 2 * x)


def test_one_graph_serves_all_sizes():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    f = torch.compile(lambda x: scaling(x + 1, 3.0) - 1, fullgraph=True, dynamic=True, backend=backend)
    for rows in (2, 3, 17):
        assert torch.equal(f(matrix(rows)), 3 * (matrix(rows) + 1) - 1)
    assert len(graphs) == 1


def test_gradients_also_compiled():
    def loss(x):
        return (scaling(x, 2.0) * x).sum()

    for f in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        x = matrix().requires_grad_()
        f(x).backward()
        assert torch.equal(x.grad, 4 * x.detach())
    x = matrix().requires_grad_()
    first = torch.autograd.grad(scaling(scaling(x, 2.0) ** 2, 3.0).sum(), x, create_graph=True)[0]
    assert torch.equal(torch.autograd.grad(first.sum(), x)[0], torch.full((3, 4), 24.0))  # a gradient has one, too


def test_gradients_are_those_of_differences():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: scaling(x, 3.0), (x,))


def test_channels_last_and_the_same_tensor_twice():
    """An output like an input has its strides; inputs may be one tensor, or parts of one."""

    @cute.kernel
    def added(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        for c in range(a.shape[1]):
            y[0, c, i, 0] = a[0, c, i, 0] + b[0, c, i, 0]

    @cute.jit
    def add(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        added(a, b, y).launch(grid=1, block=2)

    op = kt.op("kiln_tests::add", add, outputs={"y": "a"})
    x = torch.arange(6.0).reshape(1, 3, 2, 1).to(memory_format=torch.channels_last)
    for _ in range(2):  # Python's call, and native code's
        assert torch.equal(op(x, x), 2 * x) and op(x, x).stride() == x.stride()
        assert torch.equal(op(x[:, :2], x[:, 1:]), x[:, :2] + x[:, 1:])


def test_without_a_gradient_backward_says_so():
    plain = kt.op("kiln_tests::plain", scale, outputs={"y": "x"})
    x = matrix().requires_grad_()
    y = plain(x)
    with pytest.raises(RuntimeError, match="kiln_tests::plain has no gradient"):
        y.sum().backward()
    with torch.no_grad():
        assert torch.equal(plain(x), 2 * x)


def test_vmap_of_vmap():
    x = torch.stack([torch.stack([matrix(), matrix() + 1]), torch.stack([matrix() + 2, matrix() + 3])])
    assert torch.equal(torch.vmap(torch.vmap(scaling))(x), 2 * x)
    assert torch.equal(torch.vmap(scaling, in_dims=1, out_dims=1)(x[0]), 2 * x[0])


def test_vmap_in_one_call():
    ranks = []

    @cute.kernel
    def along(x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        if thread < cute.size(x):
            cute.make_tensor(y.iterator, cute.make_layout((64,)))[thread] = (
                cute.make_tensor(x.iterator, cute.make_layout((64,)))[thread] + 1.0
            )

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        ranks.append(len(x.shape))
        along(x, y).launch(grid=1, block=64)

    plus = kt.op("kiln_tests::plus", launch, outputs={"y": lambda x: torch.empty_like(x)}, vmap="leading")
    x = torch.stack([matrix(), matrix() + 5])
    assert torch.equal(torch.vmap(plus)(x), x + 1)
    assert ranks == [3]


def test_several_outputs_lists_optional_ones_and_what_is_compiled_in():
    @cute.kernel
    def both(xs: list, bias, s: cute.Tensor, d: cute.Tensor, k: Constexpr):
        i, _, _ = cute.arch.thread_idx()
        s[i] = xs[0][i] + xs[1][i] if bias is None else xs[0][i] + xs[1][i] + bias[i]
        d[i] = (xs[0][i] - xs[1][i]) * k

    @cute.jit
    def launch(
        xs: list[cute.Tensor], s: cute.Tensor, d: cute.Tensor, bias: cute.Tensor | None = None, k: Constexpr[int] = 2
    ):
        both(xs, bias, s, d, k).launch(grid=1, block=4)

    like = lambda xs, bias, k: torch.empty_like(xs[0])
    op = kt.op("kiln_tests::both", launch, outputs={"s": like, "d": like})
    assert op.schema == "(Tensor[] xs, Tensor? bias=None, SymInt k=2) -> (Tensor, Tensor)"
    a, b = torch.arange(4.0), torch.ones(4)
    for bias, k in ((None, 2), (torch.full((4,), 3.0), 5)):
        s, d = op([a, b], bias, k)
        assert torch.equal(s, a + b + (0 if bias is None else bias)) and torch.equal(d, (a - b) * k)


def test_what_is_mutated_is_marked():
    @cute.jit
    def launch(x: cute.Tensor, by: Int32, doubled: Boolean):
        scaled(x, x, by.to(Float32)).launch(grid=x.shape[0], block=64)

    op = kt.op("kiln_tests::in_place", launch, mutates=("x",))
    assert op.schema == "(Tensor(a!) x, SymInt by, bool doubled) -> ()"
    x = matrix()
    op(x, 3, True)
    assert torch.equal(x, 3 * matrix())
    f = torch.compile(lambda x: (op(x, 2, False), x + 1)[1], fullgraph=True, backend="aot_eager")
    assert torch.equal(f(matrix()), 2 * matrix() + 1)


@cute.kernel
def added(x: cute.Tensor, z: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    i = block * 32 + thread
    if i < cute.size(x):
        x[i] = x[i] + z[i].to(x.element_type)


@cute.jit
def add(x: cute.Tensor, z: cute.Tensor, stream):
    added(x, z).launch(grid=(cute.size(x) + 31) // 32, block=32, stream=stream)


def add_in_python(x: cute.Tensor, z: cute.Tensor):
    x.detach().numpy()[...] += z.detach().numpy()


adding = kt.op("kiln_tests::add_to", add, mutates=("x",), autocast=torch.bfloat16)
adding_in_python = kt.op("kiln_tests::add_to_in_python", add_in_python, mutates=("x",))
ADDING = {
    "object": adding, "operator": torch.ops.kiln_tests.add_to, "python": adding_in_python,
    "compiled": torch.compile(lambda x, z: adding(x, z), backend="aot_eager"),
}  # fmt: skip


@pytest.fixture(params=ADDING)
def add_to(request):
    """An operator that writes to its first input, in all ways it can be called; native code takes the second call of a kind."""
    call = ADDING[request.param]
    with torch.no_grad():
        call(torch.zeros(4), torch.ones(4))
    return call


def test_autograd_is_told_what_was_written_to(add_to):
    x = torch.zeros(4)
    for calls in (1, 2):
        before = x._version
        add_to(x, torch.ones(4))
        assert x._version > before and x.tolist() == [calls] * 4
    y, factor = torch.arange(4.0, requires_grad=True), torch.full((4,), 3.0)
    product = (y * factor).sum()  # saves the factor
    add_to(factor[1:], torch.ones(3))  # a view has the version of what it shows
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    (y * factor).sum().backward()
    assert y.grad.tolist() == factor.tolist() == [3, 4, 4, 4]


@pytest.mark.parametrize("call", ["object", "operator", "python"])
def test_what_is_not_written_to_in_place(call):
    add_to = ADDING[call]
    for _ in range(2):
        with torch.inference_mode():
            of_inference = torch.zeros(4)
            add_to(of_inference, torch.ones(4))
            plain = torch.zeros(4)
        leaf = torch.zeros(4, requires_grad=True)
        for x, words in (
            (of_inference, "a tensor of inference mode"),
            (torch.zeros(1).expand(4), "one element at several coordinates"),
            (leaf, "it requires a gradient"),
            (leaf * 2, "it requires a gradient"),
        ):
            was = x.tolist()
            with pytest.raises(RuntimeError, match=words) as refused:
                add_to(x, torch.ones(4))
            assert "argument 'x'" in str(refused.value) and x.tolist() == was
        with torch.no_grad():
            add_to(leaf, torch.ones(4))
        assert leaf.tolist() == [1] * 4 and leaf._version == 1
        normal = torch.zeros(4)
        with torch.inference_mode():
            add_to(normal, torch.ones(4))
            add_to(plain, torch.ones(4))
        assert normal._version == 1 and plain.tolist() == [1] * 4
        add_to(torch.zeros(2), torch.ones(1).expand(2))  # what is only read may be so
        add_to(torch.zeros(1).expand(0, 4), torch.ones(0, 4))


def test_torch_checks_an_operator_that_writes():
    torch.library.opcheck(adding.default, (torch.zeros(4), torch.ones(4)))


def test_autocast_leaves_what_is_written_to():
    x = torch.zeros(4)
    with torch.autocast("cpu"):
        adding(x, torch.full((4,), 1.001))
    assert x.tolist() == [1.0] * 4


def test_tensors_without_elements():
    """Nothing is done where there is nothing to write; results have their shapes."""
    for _ in range(2):
        for rows, columns in ((0, 7), (3, 0), (2, 4)):
            x = torch.ones(rows, columns)
            assert scaling(x).shape == torch.ops.kiln_tests.scale(x).shape == (rows, columns)
        cut = torch.ones(3, 4)[:0]  # which has an address
        assert scaling(cut).shape == torch.ops.kiln_tests.scale(cut).shape == (0, 4)
        x = torch.zeros(0, 4, requires_grad=True)
        scaling(x, 3.0).sum().backward()
        assert x.grad.shape == (0, 4)
        for call in ADDING.values():
            call(torch.zeros(0), torch.zeros(0))

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        scaled(y, y, x.shape[0] * 0.0).launch(grid=y.shape[0], block=64)

    emptied = kt.op("kiln_tests::sums_of_nothing", launch, outputs={"y": (2, "x.1")})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="grid"):
            launching_nothing(torch.zeros(0, 4))
        assert emptied(torch.zeros(0, 4)).shape == (2, 4)  # the kernel runs: its output has elements


@cute.jit
def launch_nothing(x: cute.Tensor, y: cute.Tensor):
    scaled(x, y, 1.0).launch(grid=x.shape[0], block=64)


launching_nothing = kt.op("kiln_tests::launch_nothing", launch_nothing, outputs={"y": (2, "x.1")})


def test_autocast():
    seen = []

    @cute.kernel
    def copied(x: cute.Tensor, y: cute.Tensor):
        block, _, _ = cute.arch.block_idx()
        y[block, 0] = x[block, 0]

    @cute.jit
    def copy(x: cute.Tensor, y: cute.Tensor):
        seen.append(x.element_type.__name__)
        copied(x, y).launch(grid=x.shape[0], block=1)

    op = kt.op("kiln_tests::cast", copy, outputs={"y": "x"}, autocast=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(matrix(3, 1)).dtype == torch.bfloat16
    assert seen == ["BFloat16"]


def test_fake_and_meta_tensors_need_no_kernel():
    assert scaling(torch.empty(5, 6, device="meta")).shape == (5, 6)

    class Model(torch.nn.Module):
        def forward(self, x):
            return scaling(x, 4.0)

    program = torch.export.export(Model(), (matrix(),), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2)}})
    assert torch.equal(program.module()(matrix(7)), 4 * matrix(7))


def test_parameters_that_have_only_names():
    """Also of functions that do not say what they return, where PyTorch calls and Python answers."""

    @cute.jit
    def by_name(x: cute.Tensor, y: cute.Tensor, *, by: Float32 = 2.0):
        scaled(x, y, by).launch(grid=x.shape[0], block=64)

    made = kt.op("kiln_tests::by_name", by_name, outputs={"y": "x"})
    for _ in range(2):
        assert torch.equal(made(matrix()), 2 * matrix())
        assert torch.equal(made(matrix(), by=3.0), 3 * matrix())
    assert torch.equal(torch.ops.kiln_tests.by_name(matrix(), by=5.0), 5 * matrix())


WRONG = {
    "name": (lambda: kt.op("scale", scale), "called namespace::name"),
    "only output": (lambda: kt.op("kiln_tests::w0", scale, outputs={"z": "x"}), "outputs names 'z'"),
    "output": (lambda: kt.op("kiln_tests::w1", scale, outputs={"y": "x", "z": "x"}), "outputs names 'z'"),
    "like": (lambda: kt.op("kiln_tests::w2", scale, outputs={"y": "z"}), "to be like 'z'"),
    "both": (
        lambda: kt.op("kiln_tests::w3", scale, outputs={"y": "x"}, mutates=("y",)),
        "both in outputs and in mutates",
    ),
    "save": (lambda: kt.op("kiln_tests::w4", scale, outputs={"y": "x"}, save=("w",)), "save names 'w'"),
    "extent": (lambda: kt.op("kiln_tests::w7", scale, outputs={"y": ("x.0", "by")}), "the extent 'by'"),
    "dtype": (lambda: kt.op("kiln_tests::w8", count, outputs={"y": ("n",)}), "has no type"),
    "vmap": (lambda: kt.op("kiln_tests::w5", scale, outputs={"y": "x"}, vmap="all"), "vmap='all'"),
    "type": (lambda: kt.op("kiln_tests::w6", lambda x, *rest: None), "no type for the parameter 'x'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_operator_is_refused(name):
    act, text = WRONG[name]
    with pytest.raises(TypeError, match=text):
        act()


def test_arguments_are_counted_as_those_of_functions():
    with pytest.raises(TypeError, match=r"kiln_tests::scale\(\) missing 1 required positional argument"):
        scaling()
    with pytest.raises(TypeError, match=r"kiln_tests::scale\(\) got an unexpected keyword argument 'times'"):
        scaling(torch.ones(2, 2), times=2.0)


def test_a_name_is_taken_once():
    with pytest.raises(TypeError, match="there is an operator kiln_tests::scale already") as refused:
        kt.op("kiln_tests::scale", scale, outputs={"y": "x"})
    assert 'scaling = kt.op("kiln_tests::scale"' in str(refused.value)  # where it was made first
    with pytest.raises(TypeError, match="aten::mm already, and kiln.torch.op did not make it"):
        kt.op("aten::mm", scale, outputs={"y": "x"})
    with pytest.raises(TypeError, match="outputs names"):
        kt.op("kiln_tests::w9", scale, outputs={"z": "x"})
    kt.op("kiln_tests::w9", scale, outputs={"y": "x"})  # what was refused is not taken


def test_a_bad_argument_through_torch():
    with pytest.raises(RuntimeError, match="expected.*Tensor|Expected a value of type 'Tensor'"):
        torch.ops.kiln_tests.scale(3)
    for call in (scaling, torch.ops.kiln_tests.scale):
        with pytest.raises(RuntimeError, match=r"x.shape\[1\] asks for mode 1, and x has 1 mode"):
            call(torch.zeros(4))
