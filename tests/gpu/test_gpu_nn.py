"""Layers on the kernel library in models that train on the GPU, beside those of PyTorch: eagerly, compiled, under autocast, in a graph."""

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _on_the_gpu():
    """The target is that of a program which says nothing."""
    return


class Block(torch.nn.Module):
    """A layer of a transformer on one library's modules."""

    def __init__(self, library, width=128, heads=2):
        super().__init__()
        self.ours = library is not torch.nn
        self.attention_norm, self.norm = library.RMSNorm(width, eps=1e-6), library.LayerNorm(width)
        self.attention = library.MultiheadAttention(width, heads, batch_first=True)
        activation = {"activation": "gelu"} if self.ours else {}
        self.up, self.down = library.Linear(width, 2 * width, **activation), library.Linear(2 * width, width)

    def forward(self, x):
        y = self.attention_norm(x)
        mask = (
            None if self.ours else torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        )
        x = x + self.attention(y, y, y, need_weights=False, attn_mask=mask, is_causal=True)[0]
        y = self.up(self.norm(x))
        return x + self.down(y if self.ours else F.gelu(y))


def models(dtype=torch.bfloat16):
    """The same model on our modules and on torch's, with the loss of each."""
    nn = pytest.importorskip("kiln.nn")
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(Block(torch.nn), torch.nn.Linear(128, 64)).to("cuda", dtype)
    ours = torch.nn.Sequential(Block(nn), nn.Linear(128, 64)).to("cuda", dtype)
    ours.load_state_dict(theirs.state_dict())
    return (ours, nn.CrossEntropyLoss()), (theirs, torch.nn.CrossEntropyLoss())


def batch(dtype=torch.bfloat16, rows=2, tokens=64):
    torch.manual_seed(rows)
    return torch.randn(rows, tokens, 128, device="cuda", dtype=dtype), torch.randint(64, (rows, tokens), device="cuda")


def losses(model, loss_of, steps=4, cast=None, call=None):
    """Of a few steps of training."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.2), []
    x, target = batch(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cuda", cast or torch.bfloat16, enabled=cast is not None):
            loss = loss_of((call or model)(x).flatten(0, 1).float(), target.flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def test_training_as_with_torchs_modules():
    ours, theirs = (losses(*each) for each in models())
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert ours[-1] < ours[0]


def test_training_under_autocast():
    """Weights of 32 bits; products and attention have 16."""
    (model, loss_of), (reference, other) = models(torch.float32)
    ours = losses(model, loss_of, cast=torch.float16)
    torch.testing.assert_close(ours, losses(reference, other, cast=torch.float16), rtol=2e-2, atol=2e-2)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_training_compiled_with_dynamic_shapes():
    from torch._dynamo.testing import CompileCounterWithBackend

    (model, loss_of), (reference, other) = models()
    counting = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counting)
    ours = losses(model, loss_of, call=compiled)
    torch.testing.assert_close(ours, losses(reference, other), rtol=2e-2, atol=2e-2)
    for rows, tokens in ((3, 32), (4, 96)):
        x, _ = batch(rows=rows, tokens=tokens)
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    assert counting.frame_count <= 2  # not one for each of three shapes


def test_a_step_of_training_in_a_graph():
    (model, loss_of), (reference, other) = models()
    x, target = batch()

    def step(model, loss_of):
        loss = loss_of(model(x).flatten(0, 1), target.flatten())
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.2 * p.grad
                p.grad.zero_()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are compiled, gradients have their memory
        first = step(model, loss_of)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, loss_of)
    ours = [first]
    for _ in range(3):
        graph.replay()
        ours.append(loss.clone())
    theirs = [step(reference, other) for _ in range(4)]
    torch.testing.assert_close(torch.stack(ours).float(), torch.stack(theirs).float(), rtol=2e-2, atol=2e-2)


def test_vmap_over_models():
    nn = pytest.importorskip("kiln.nn")
    torch.manual_seed(0)
    x, weights = torch.randn(3, 8, 64, device="cuda"), torch.randn(3, 16, 64, device="cuda") / 8
    ours = torch.vmap(lambda x, w: nn.linear(nn.rms_norm(x), w))(x, weights)
    theirs = torch.vmap(lambda x, w: F.linear(F.rms_norm(x, (64,), eps=1e-6), w))(x, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
