"""Layers on the kernel library against those of PyTorch: values, gradients, a few steps of training."""

import pytest

torch = pytest.importorskip("torch")
nn = pytest.importorskip("kiln.nn")


def close(a, b, factor=1.0):
    torch.testing.assert_close(a, b, rtol=2e-2 * factor, atol=2e-2 * factor)


def both(function, reference, *inputs):
    """Values and gradients of two functions of the same inputs."""
    found = []
    for f in (function, reference):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        y = f(*leaves)
        (y.float() * torch.arange(1.0, y.numel() + 1).reshape(y.shape) / y.numel()).sum().backward()
        found.append((y, *(x.grad for x in leaves if x.grad is not None)))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]), dtype=torch.float32).to(
        dtype
    )


F = torch.nn.functional
ANGLES = torch.arange(5.0)[:, None] / torch.arange(1.0, 9.0)
CASES = {
    "rms_norm": (
        lambda x, w: nn.rms_norm(x, w),
        lambda x, w: F.rms_norm(x, (16,), w, 1e-6),
        (normal(3, 16), normal(16)),
    ),
    "rms_norm without weight": (nn.rms_norm, lambda x: F.rms_norm(x, (16,), eps=1e-6), (normal(2, 3, 16),)),
    "layer_norm": (
        nn.layer_norm,
        lambda x, w, b: F.layer_norm(x, (16,), w, b),
        (normal(3, 16), normal(16), normal(16)),
    ),
    "norms of sums": (
        lambda x, r, w, b: sum((*nn.fused_add_rms_norm(x, r, w), *nn.fused_add_layer_norm(x, r, w, b))),
        lambda x, r, w, b: F.rms_norm(x + r, (16,), w, 1e-6) + 2 * (x + r) + F.layer_norm(x + r, (16,), w, b),
        (normal(3, 16), normal(3, 1, 16)[:, 0], normal(16), normal(16)),
    ),
    "gated units": (
        lambda g, u: nn.swiglu(g, u) + nn.geglu(g, u),
        lambda g, u: F.silu(g) * u + F.gelu(g) * u,
        (normal(3, 16), normal(1, 3, 16)[0]),
    ),
    "rotary_embedding": (
        lambda x: nn.rotary_embedding(x, ANGLES.cos(), ANGLES.sin(), True),
        lambda x: torch.view_as_real(
            torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.exp(1j * ANGLES)[:, None]
        ).flatten(-2),
        (normal(2, 5, 3, 16),),
    ),
    "softmax": (nn.softmax, lambda x: F.softmax(x, -1), (normal(3, 16),)),
    "linear": (nn.linear, F.linear, (normal(2, 3, 16), normal(8, 16), normal(8))),
    "gelu": (
        lambda x, w, b: nn.linear(x, w, b, "gelu"),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (normal(4, 16), normal(8, 16), normal(8)),
    ),
    "relu without bias": (
        lambda x, w: nn.linear(x, w, None, "relu"),
        lambda x, w: F.relu(F.linear(x, w)),
        (normal(4, 16), normal(8, 16)),
    ),
    "cross_entropy": (
        lambda x, t: nn.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        (normal(5, 16), torch.tensor([0, 3, -100, 15, 7])),
    ),
}


@pytest.mark.parametrize("name", nn._ACTIVATION_BACKWARD)
def test_gradients_of_activations_are_those_of_what_is_computed(name):
    """Not of another way to compute them: within the rounding of f32."""
    x, w = (normal(64, 16) * 0.5).requires_grad_(), torch.eye(16)
    ours, theirs = nn.linear(x, w, None, name), getattr(F, name)(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=2e-6)
    for got, wanted in zip(*(torch.autograd.grad(y.sum(), x) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=2e-6)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    ours, theirs, inputs = CASES[name]
    both(ours, theirs, *inputs)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("causal", "heads"), [(False, 2), (True, 1)])
def test_attention(causal, heads):
    q = normal(1, 9, 2, 16, dtype=torch.float16)
    k, v = (normal(1, 12, heads, 16, dtype=torch.float16) + shift for shift in (0, 0.5))

    def reference(q, k, v):
        q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
        mask = torch.ones(9, 12).tril(3).bool() if causal else None
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2).to(torch.float16)

    both(lambda q, k, v: nn.attention(q, k, v, causal=causal), reference, q, k, v)


def test_attention_of_sequences_one_after_another():
    q, k, v = (normal(12, 2, 16, dtype=torch.float16) + shift for shift in (0, 0.2, 0.5))
    starts = torch.tensor([0, 5, 12], dtype=torch.int32)

    def reference(q, k, v):
        found = []
        for begin, end in ((0, 5), (5, 12)):
            a, b, c = (x[begin:end].transpose(0, 1).float() for x in (q, k, v))
            scores = 3.0 * torch.tanh(a @ b.transpose(1, 2) / 4.0 / 3.0)
            mask = torch.ones(end - begin, end - begin).bool()
            hidden = ~(mask.tril() & mask.triu(-3))
            found.append((scores.masked_fill(hidden, -torch.inf).softmax(-1) @ c).transpose(0, 1))
        return torch.cat(found).half()

    options = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 7, "max_seqlen_k": 7}
    both(
        lambda q, k, v: nn.attention(q, k, v, causal=True, window=(3, None), softcap=3.0, **options), reference, q, k, v
    )


def test_attention_with_distances_and_sinks():
    """Gradients of sinks, too."""
    q, k, v = (normal(1, 9, 2, 16, dtype=torch.float16) + shift for shift in (0, 0.2, 0.5))
    slopes, sinks = torch.tensor([0.1, 0.3]), torch.tensor([0.5, -0.5])

    def reference(q, k, v, sinks):
        q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
        distance = torch.arange(9)[None] - torch.arange(9)[:, None]
        scores = q @ k.transpose(2, 3) / 4.0 - slopes[:, None, None] * distance.abs()
        scores = torch.cat(
            [scores.masked_fill(distance > 0, -torch.inf), sinks[None, :, None, None].expand(1, 2, 9, 1)], -1
        )
        return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2).half()

    both(
        lambda q, k, v, sinks: nn.attention(q, k, v, causal=True, alibi_slopes=slopes, sinks=sinks),
        reference, q, k, v, sinks,
    )  # fmt: skip


def test_operators_pass_the_checks_of_torch():
    arguments = normal(4, 16).requires_grad_(), normal(8, 16).requires_grad_()
    assert set(torch.library.opcheck(nn.linear.default, arguments).values()) == {"SUCCESS"}


def model(library):
    torch.manual_seed(0)
    first = library.Linear(16, 32, activation="gelu") if library is nn else torch.nn.Linear(16, 32)
    after = [] if library is nn else [torch.nn.GELU(approximate="tanh")]
    norms = [library.RMSNorm(32, eps=1e-6), library.LayerNorm(32)]
    return torch.nn.Sequential(first, *after, *norms, library.Linear(32, 8))


@pytest.mark.quick(0)
def test_a_model_trains_as_with_torchs_modules():
    losses = []
    for library in (nn, torch.nn):
        layers, loss_of = model(library), library.CrossEntropyLoss()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.5)
        x, target = normal(12, 16), torch.arange(12) % 8
        steps = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of(layers(x), target)
            loss.backward()
            optimizer.step()
            steps.append(loss.detach())
        losses.append(torch.stack(steps))
    close(*losses)
    assert losses[0][-1] < losses[0][0]


def test_a_model_compiles_without_a_break():
    layers = model(nn)
    compiled = torch.compile(layers, fullgraph=True, backend="aot_eager")
    x = normal(6, 16)
    close(compiled(x), layers(x))
    assert "activation=gelu" in repr(layers)
    with pytest.raises(ValueError, match="activation='tanh'"):
        nn.Linear(4, 4, activation="tanh")


def test_multihead_attention_has_the_weights_of_torchs():
    ours, theirs = nn.MultiheadAttention(32, 2), torch.nn.MultiheadAttention(32, 2, batch_first=True).half()
    ours = ours.half()
    ours.load_state_dict(theirs.state_dict())
    x = normal(1, 6, 32, dtype=torch.float16)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float16)
    wanted = theirs(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)[0]
    close(ours(x, x, x, attn_mask=mask, is_causal=True)[0], wanted)
    for options in ({"need_weights": True}, {"attn_mask": mask}):
        with pytest.raises(ValueError, match="is_causal=True"):
            ours(x, x, x, **options)
    with pytest.raises(ValueError, match="batch_first=True"):
        nn.MultiheadAttention(32, 2, batch_first=False)


def test_products_under_autocast():
    x, w = normal(4, 16), normal(8, 16).requires_grad_()
    with torch.autocast("cpu", torch.float16):
        y = nn.linear(nn.rms_norm(x), w)
    assert y.dtype == torch.float16
    y.float().sum().backward()
    assert w.grad.dtype == torch.float32


REFUSED = {
    "rms_norm": (lambda x: nn.rms_norm(x.double()), "kiln.nn.rms_norm: x is torch.float64; it must be torch.float16, .* or torch.float32"),
    "linear": (lambda x: nn.linear(x, x.long()), "kiln.nn.linear: weight is torch.int64"),
    "mixed": (lambda x: nn.linear(x.half(), x), "kiln.nn.linear: x is torch.float16, weight is torch.float32; they must be of one type"),
    "gated": (lambda x: nn.geglu(x, x.double()), "kiln.nn.geglu: up is torch.float64"),
    "loss": (lambda x: nn.cross_entropy(x.int(), torch.zeros(4)), "kiln.nn.cross_entropy: logits is torch.int32"),
    "attention": (lambda x: nn.attention(*[x[None, :, None]] * 3), "kiln.nn.attention: q is torch.float32; it must be torch.float16 or"),
    "layer": (lambda x: nn.MultiheadAttention(16, 1)(*[x[None]] * 3), "kiln.nn.MultiheadAttention: query is torch.float32; it must be torch.float16 or torch.bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_a_layer_does_not_take_are_named(name):
    """The error has the layer, the argument, its type, and those that are taken."""
    call, text = REFUSED[name]
    with pytest.raises(RuntimeError, match=text):
        call(normal(4, 16))


def test_attention_of_f32_under_autocast_has_gradients_in_f32():
    ours, theirs = nn.MultiheadAttention(32, 2), torch.nn.MultiheadAttention(32, 2, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = normal(1, 6, 32)
    with torch.autocast("cpu", torch.float16):
        y = ours(x, x, x)[0]
    assert y.dtype == torch.float16
    y.float().square().sum().backward()
    theirs(x, x, x, need_weights=False)[0].square().sum().backward()
    for found, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert found.grad.dtype == torch.float32
        close(found.grad, wanted.grad, 4 * max(1.0, float(wanted.grad.abs().max())))
