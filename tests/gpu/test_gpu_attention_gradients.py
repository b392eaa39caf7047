"""Gradients of attention on a GPU, against float64 computed by PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import kernels
from kiln.hardware import features
from kiln.kernels.dispatch import devices
from kiln.kernels.impl.attention import AttentionProblem
from kiln.kernels.impl.attention.bwd import AttentionBackwardProblem, sm90_config, sm90_cost

torch = pytest.importorskip("torch")


def normal(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def exact(dout: Any, q: Any, k: Any, v: Any, causal: bool, window: Any, softcap: float) -> tuple[list[Any], list[Any]]:
    """The gradients of q, k and v (rows, heads, D) of one sequence, and what a step of 1 in the rounding of operands makes of each."""
    shared = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5
    distance = torch.arange(k.shape[0], device="cuda")[None] - (
        torch.arange(q.shape[0], device="cuda")[:, None] + k.shape[0] - q.shape[0]
    )
    left, right = (None, None) if window is None else window
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if causal or right is not None:
        hidden |= distance > (0 if causal else right)
    if left is not None:
        hidden |= distance < -left
    found = [[torch.zeros(x.shape, device="cuda", dtype=torch.float64) for x in (q, k, v)] for _ in range(2)]
    for head in range(q.shape[1]):
        of = head // shared
        g, a, b, c = dout[:, head].double(), q[:, head].double(), k[:, of].double(), v[:, of].double()
        scores, slopes = a @ b.T * scale, 1.0
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
            slopes = 1 - (scores / softcap).square()
        weights = torch.softmax(scores.masked_fill_(hidden, -float("inf")), -1).nan_to_num(0.0)
        outputs = weights @ c
        changes = weights * (g @ c.T - (g * outputs).sum(-1, keepdim=True)) * slopes
        inexact = changes.abs() + weights * slopes * (g * outputs).abs().sum(-1, keepdim=True)
        for to, w, d, x, y, z in (
            (found[0], weights, changes, g, a, b),
            (found[1], weights, inexact, g.abs(), a.abs(), b.abs()),
        ):
            to[0][:, head] += scale * d @ z
            to[1][:, of] += scale * d.T @ y
            to[2][:, of] += w.T @ x
    return found[0], found[1]


def check(shape: Any, keys: int, heads_k: int, config: Any = None, dtype: Any = torch.bfloat16, **options: Any) -> None:
    """`dim_v`, among options: elements of values, if they are others."""
    batches, queries, heads, dim = shape
    dim_v = options.pop("dim_v", dim)
    q, dout = normal(*shape, dtype=dtype), normal(*shape[:3], dim_v, dtype=dtype)
    k, v = (normal(batches, keys, heads_k, d, dtype=dtype) for d in (dim, dim_v))
    deterministic = options.pop("deterministic", True)
    out, lse = kernels.flash_attention(q, k, v, return_lse=True, **options)
    run = lambda: kernels.flash_attention_backward(  # noqa: E731
        dout, q, k, v, out, lse, config=config, deterministic=deterministic, **options
    )
    got = run()
    given = {"causal": False, "window": None, "softcap": 0.0, **options}
    step = torch.finfo(dtype).eps
    for n in range(batches):
        wanted = exact(dout[n], q[n], k[n], v[n], **given)
        for name, x, values, spread in zip(("dq", "dk", "dv"), got, *wanted, strict=True):
            error, bound = (x[n].double() - values).abs(), step * (spread + values.abs()) + 1e-6
            assert bool((error <= bound).all()), (
                f"{name}: {(error / bound).max().item():.2f} times what rounding explains"
            )
    if deterministic:
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window": (500, 100)}, {"causal": True, "window": (300, None)}, {"softcap": 20.0}],
    ids=str,
)
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
def test_shapes(dim, options, dtype):
    """Lengths that are no multiples of tiles, heads that share keys."""
    check((2, 1111, 4, dim), 1333, 2, dtype=dtype, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dims", [(192, 128), (136, 64), (64, 200)])
def test_values_of_another_size(dims, causal):
    check((2, 1111, 4, dims[0]), 1333, 2, dim_v=dims[1], causal=causal)


@pytest.mark.parametrize("config", [None, kernels.Sm80AttentionBackwardConfig()])
def test_more_queries_than_keys(config):
    check((1, 700, 2, 128), 300, 1, config, causal=True)
    check((1, 5, 2, 64), 3000, 2, config)
    check((1, 700, 2, 256), 300, 1, config, causal=True)
    check((1, 5, 2, 192), 3000, 2, config)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", [None, kernels.Sm80AttentionBackwardConfig()])
@pytest.mark.parametrize("dim", [8, 16, 24])
def test_more_queries_than_threads(dim, config, causal):
    """Sums of rows of small heads are of more rows than a block of threads has threads, in blocks of several rows of a thread."""
    check((2, 1111, 4, dim), 333, 2, config, causal=causal)


@pytest.mark.parametrize(
    ("shape", "causal"), [((1, 4096, 16, 128), True), ((1, 3000, 32, 40), False), ((1, 8000, 34, 64), True)]
)
def test_gradients_made_meanwhile(shape, causal):
    """By a warp beside the products of other heads, where blocks of threads are long enough for that."""
    batches, rows, heads, dim = shape
    device = devices.current()
    if not device.has(features.WARPGROUP_MMA):
        pytest.skip("this GPU has no warp groups that multiply")
    of = AttentionProblem(batches, rows, rows, heads, heads, dim, dim, window_right=0 if causal else None)
    problem = AttentionBackwardProblem(of)
    config = sm90_cost.default_config(problem, device)
    side, _, parts = sm90_config.head_groups(problem, config, device)
    assert 0 < sm90_config.converted_heads(problem, config, side, parts) < heads
    check(shape, rows, heads, causal=causal)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 40), "softcap": 20.0}], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
def test_sequences_of_any_length(dim, options):
    """One after another, some without queries or keys, with keys that do not exist, and no numbers where nothing is; more blocks of keys than SMs."""
    queries, keys, exist = [700, 0, 1, 333, 64], [650, 129, 300, 0, 64], [600, 3, 300, 0, 64]
    q, dout = (normal(sum(queries) + 50, 16, dim) for _ in range(2))
    k, v = (normal(sum(keys) + 50, 8, dim) for _ in range(2))
    starts = [[sum(of[:n]) for n in range(6)] for of in (queries, keys)]
    for x in (q, dout):
        x[sum(queries) :] = float("nan")
    for x in (k, v):
        x[sum(keys) :] = float("nan")
        for first, there, end in zip(starts[1], exist, starts[1][1:], strict=False):
            x[first + there : end] = float("nan")
    lengths = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in (*starts, exist)]
    given = {**dict(zip(("cu_seqlens_q", "cu_seqlens_k", "seqused_k"), lengths, strict=True)), **options}
    out, lse = kernels.flash_attention(q, k, v, return_lse=True, **given)
    made = [torch.full_like(x, 7.0) for x in (q, k, v)]
    got = kernels.flash_attention_backward(
        dout, q, k, v, out, lse, dq=made[0], dk=made[1], dv=made[2], max_seqlen_q=700, max_seqlen_k=650, **given
    )
    step = torch.finfo(q.dtype).eps
    for n in range(5):
        rows = slice(*starts[0][n : n + 2])
        others = slice(starts[1][n], starts[1][n] + exist[n])
        of = {"causal": False, "window": None, "softcap": 0.0, **options}
        wanted = exact(dout[rows], q[rows], k[others], v[others], **of)
        for x, part, values, spread in zip(got, (rows, others, others), *wanted, strict=True):
            error, bound = (x[part].double() - values).abs(), step * (spread + values.abs()) + 1e-6
            assert bool((error <= bound).all())
        assert not any(x[others.stop : starts[1][n + 1]].any() for x in got[1:])
    assert all(bool((x[-50:] == 7.0).all()) for x in got)
    again = kernels.flash_attention_backward(dout, q, k, v, out, lse, **given)
    assert all(torch.equal(a[:-50], b[:-50]) for a, b in zip(got, again, strict=True))


@pytest.mark.parametrize("config", [None, kernels.Sm80AttentionBackwardConfig()])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_what_lies_behind_the_keys_that_exist(dim, config):
    """No numbers there."""
    q, dout = (normal(2, 333, 4, dim) for _ in range(2))
    k, v = (normal(2, 700, 2, dim) for _ in range(2))
    exist = [257, 650]
    for n, there in enumerate(exist):
        k[n, there:], v[n, there:] = float("nan"), float("nan")
    used = torch.tensor(exist, dtype=torch.int32, device="cuda")
    out, lse = kernels.flash_attention(q, k, v, seqused_k=used, return_lse=True)
    got = kernels.flash_attention_backward(dout, q, k, v, out, lse, seqused_k=used, config=config)
    for n, there in enumerate(exist):
        wanted = exact(dout[n], q[n], k[n, :there], v[n, :there], False, None, 0.0)
        for x, values, spread in zip(got, *wanted, strict=True):
            error, bound = (x[n, : values.shape[0]].double() - values).abs(), 2**-7 * (spread + values.abs()) + 1e-6
            assert bool((error <= bound).all())
            assert not x[n, values.shape[0] :].any()


@pytest.mark.parametrize("said", [0, 1, 256])
@pytest.mark.parametrize("config", [None, kernels.Sm80AttentionBackwardConfig()])
def test_a_number_of_keys_that_is_too_small(config, said):
    """Arrays have the lengths they have."""
    q, k, v, dout = (normal(1, n, 1, 64) for n in (64, 1100, 1100, 64))
    out, lse = kernels.flash_attention(q, k, v, return_lse=True)
    wanted = kernels.flash_attention_backward(dout, q, k, v, out, lse, config=config)
    got = kernels.flash_attention_backward(dout, q, k, v, out, lse, max_seqlen_k=said, config=config)
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


def bent(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 0.05 * s * s + s - 0.25 * b + 0.5 * h - 0.001 * (q - k)


@pytest.mark.parametrize("names", [("alibi_slopes", "sinks"), ("alibi_slopes", "sinks", "score", "softcap")])
@pytest.mark.parametrize("dim", [64, 128, 192])
def test_what_is_done_to_scores(dim, names):
    """Against PyTorch's own derivatives in float64; sinks have gradients, too."""
    q, dout = (normal(2, 333, 4, dim) for _ in range(2))
    k, v = (normal(2, 300, 2, dim) for _ in range(2))
    every = {"alibi_slopes": torch.rand(2, 4, device="cuda") / 50, "sinks": torch.rand(4, device="cuda")}
    every |= {"score": bent, "softcap": 20.0}
    options = {"causal": True, **{name: every[name] for name in names}}
    out, lse = kernels.flash_attention(q, k, v, return_lse=True, **options)
    gradient = {"score_gradient": lambda s, b, h, q, k: 0.1 * s + 1.0} if "score" in names else {}
    run = lambda: kernels.flash_attention_backward(dout, q, k, v, out, lse, **options, **gradient)  # noqa: E731
    got = run()
    given = [x.double().requires_grad_() for x in (q, k, v, every["sinks"])]
    wide = [x.repeat_interleave(2, 2) for x in given[1:3]]
    scores = torch.einsum("bqhd,bkhd->bhqk", given[0], wide[0]) * dim**-0.5
    if "softcap" in names:
        scores = 20.0 * torch.tanh(scores / 20.0)
    place = torch.meshgrid(*(torch.arange(n, device="cuda") for n in scores.shape), indexing="ij")
    distance = place[3] - (place[2] + 300 - 333)
    scores = scores - every["alibi_slopes"].double()[:, :, None, None] * distance.abs()
    if "score" in names:
        scores = bent(scores, *place)
    scores = scores.masked_fill(distance > 0, -float("inf"))
    with_sinks = torch.cat([scores, given[3][None, :, None, None].expand(2, 4, 333, 1)], -1)
    outputs = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(with_sinks, -1)[..., :-1], wide[1])
    wanted = torch.autograd.grad(outputs, given, dout.double())
    for name, x, y in zip(("dq", "dk", "dv", "dsinks"), got, wanted, strict=True):
        error = (x.double() - y).abs().max() / y.abs().max()
        assert error < 0.02, f"{name}: {error}"
    assert all(torch.equal(a, b) for a, b in zip(got, run(), strict=True))
