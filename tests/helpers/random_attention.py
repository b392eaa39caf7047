"""Attention and its gradients on random problems, cut by random configs that are offered, beside float64.

    python tests/helpers/random_attention.py 300 [forward ...]     # of some kinds, for so many seconds; problems that fail are told by their seeds

Sequences lie one after another, or keys and values in pages; some have no queries, some no keys. What is behind the keys that exist is no number,
and pages there do not exist. Configs are those that are offered for a problem, or for one of more queries, keys and sequences. One kernel has several problems.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from attention_testing import close, exact
from gradient_testing import close_gradients, exact_gradients
from random_search import search

import kiln
from kiln import BFloat16, Float8E4M3FN, Float8E5M2, Float16, kernels
from kiln.kernels.dispatch import registry
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl import attention, mla
from kiln.kernels.impl.attention import AttentionProblem, bwd
from kiln.kernels.impl.attention.bwd import AttentionBackwardProblem
from kiln.kernels.impl.attention.score_mod import check_score_mod
from kiln.kernels.impl.mla import MlaProblem

HOPPER = device_of("sm_90a")
DIMS = ((64, 64), (128, 128), (40, 72), (192, 128), (8, 8), (136, 136))
EACH = 4
"""Problems of a kernel."""
Rng = np.random.Generator


def lowered(s, b, h, q, k):
    return s - 0.5 * h + 0.01 * (q - k)


def lowered_gradient(s, b, h, q, k):
    return 1.0


def any_of(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def changes(rng: Rng, heads: int) -> dict[str, Any]:
    """Some of what may be asked for."""
    found = {
        "causal": True,
        "window": (any_of(rng, None, 0, 9, 70), any_of(rng, None, 0, 40)),
        "scale": 0.3,
        "softcap": any_of(rng, 0.5, 30.0),
        "alibi_slopes": np.float32(rng.uniform(0, 0.2, heads)),
        "sinks": np.float32(rng.choice([-np.inf, -1.0, 2.0, 30.0], heads)),
        "score": lowered,
    }
    return {name: x for name, x in found.items() if rng.random() < 0.35}


class Sequences:
    """Queries of sequences one after another, one more after the last, and keys and values of each."""

    def __init__(self, rng: Rng, heads: int, heads_k: int, dims: tuple[int, int], dtype: Any) -> None:
        self.rng, self.dtype, count = rng, dtype, int(rng.integers(1, 5))
        self.queries, self.lengths = (
            [int(any_of(rng, 0, 1, n, rng.integers(n + 1))) for _ in range(count)]
            for n in (any_of(rng, 1, 5, 70, 200), any_of(rng, 1, 33, 130, 300))
        )
        self.starts = np.cumsum([int(rng.integers(3)), *self.queries]).astype(np.int32)
        self.q = self.normal(int(self.starts[-1]) + 1, heads, dims[0])
        self.k, self.v = ([self.normal(n, heads_k, dim) for n in self.lengths] for dim in dims)

    def normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def rows(self, number: int) -> slice:
        """Of queries."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def in_succession(self, more: bool) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Keys, values, and where they are; with some after those of a sequence that do not exist."""
        room = [n + int(self.rng.integers(70)) * more for n in self.lengths]
        starts = np.cumsum([int(self.rng.integers(3)), *room]).astype(np.int32)
        found = [np.full((int(starts[-1]) + 1, *x[0].shape[1:]), np.nan, self.dtype) for x in (self.k, self.v)]
        for n, start in enumerate(starts[:-1]):
            for to, x in zip(found, (self.k, self.v), strict=True):
                to[start : start + self.lengths[n]] = x[n]
        used = {"seqused_k": np.array(self.lengths, np.int32)} if more else {}
        return found[0], found[1], {"cu_seqlens_q": self.starts, "cu_seqlens_k": starts, **used}

    def in_pages(self, size: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """The same, in pages of some rows."""
        columns = -(-max(self.lengths) // size) + 1
        count = len(self.lengths) * columns + 2
        table = self.rng.permutation(count)[:-2].reshape(-1, columns).astype(np.int32)
        found = [np.full((count, size, *x[0].shape[1:]), np.nan, self.dtype) for x in (self.k, self.v)]
        for n, row in enumerate(table):
            at = np.arange(self.lengths[n])
            for to, x in zip(found, (self.k, self.v), strict=True):
                to[row[at // size], at % size] = x[n]
            row[-(-self.lengths[n] // size) :] = any_of(self.rng, 1 << 30, -1)
        used = np.array(self.lengths, np.int32)
        return found[0], found[1], {"cu_seqlens_q": self.starts, "page_table": table, "seqused_k": used}


def config_of(rng: Rng, function: Any, *given: Any, **options: Any) -> Any:
    """One that is offered for a call, or for one of more."""
    with registry.collecting_problems() as asked:
        function._function(*given, **options)
    if not asked:
        return None
    chooses, problem = asked[0]
    larger = problem
    if rng.random() < 0.5:
        of = getattr(problem, "attention", problem)
        batch, q, k = ("batch", "seqlen_q", "seqlen_k") if hasattr(of, "seqlen_q") else ("batches", "queries", "keys")
        longer = {batch: 64, q: getattr(of, q) * any_of(rng, 1, 64), k: getattr(of, k) * 64}
        of = dataclasses.replace(of, **longer)
        larger = dataclasses.replace(problem, attention=of) if hasattr(problem, "attention") else of
    by_type: dict[type, list[Any]] = {}
    for choice in chooses.choices(larger, HOPPER):
        by_type.setdefault(type(choice.config), []).append(choice.config)
    config = any_of(rng, *any_of(rng, *by_type.values()))
    return None if chooses.validate(problem, config, HOPPER) else config


def forward(rng: Rng) -> None:
    """In succession or in pages."""
    heads_k, dims, dtype = any_of(rng, 1, 2), any_of(rng, *DIMS), any_of(rng, np.float16, ml_dtypes.bfloat16)
    heads, page, more = heads_k * any_of(rng, 1, 3, 4), any_of(rng, 0, 0, 1, 16, 24), bool(rng.integers(2))
    options, config = changes(rng, heads), None
    for n in range(EACH):
        made = Sequences(rng, heads, heads_k, dims, dtype)
        k, v, lengths = made.in_pages(page) if page else made.in_succession(more)
        asked = {**lengths, **options, "return_lse": True}
        config = config_of(rng, kernels.flash_attention, made.q, k, v, **asked) if n == 0 else config
        out = np.full((*made.q.shape[:2], dims[1]), 7, dtype)
        got = kernels.flash_attention(made.q, k, v, out=out, config=config, **asked)
        for i, rows in enumerate(map(made.rows, range(len(made.queries)))):
            wanted = exact(made.q[None, rows], made.k[i][None], made.v[i][None], **options)
            close((got[0][None, rows], got[1][None, :, rows]), wanted)
        assert (out[: made.starts[0]] == 7).all()
        assert (out[made.starts[-1] :] == 7).all()


def gradients(rng: Rng) -> None:
    """The same bits twice, if that is asked for; nothing of keys that do not exist."""
    heads_k, dims, dtype = any_of(rng, 1, 2), any_of(rng, *DIMS), any_of(rng, np.float16, ml_dtypes.bfloat16)
    heads, more, repeats = heads_k * any_of(rng, 1, 3), bool(rng.integers(2)), bool(rng.integers(2))
    options, config = changes(rng, heads), None
    if "score" in options:
        options["score_gradient"] = lowered_gradient
    for n in range(EACH):
        made = Sequences(rng, heads, heads_k, dims, dtype)
        k, v, lengths = made.in_succession(more)
        dout, out = made.normal(*made.q.shape[:2], dims[1]), np.full((*made.q.shape[:2], dims[1]), np.nan, dtype)
        lse = np.full((heads, len(made.q)), np.nan, np.float32)
        known = {name: x for name, x in options.items() if name != "score_gradient"}
        for i, rows in enumerate(map(made.rows, range(len(made.queries)))):
            found = exact(made.q[None, rows], made.k[i][None], made.v[i][None], **known)
            out[rows], lse[:, rows] = found[0][0], found[1][0]
        given, asked = (dout, made.q, k, v, out, lse), {**lengths, **options, "deterministic": repeats}
        config = config_of(rng, kernels.flash_attention_backward, *given, **asked) if n == 0 else config
        into = [{name: np.zeros_like(x) for name, x in (("dq", made.q), ("dk", k), ("dv", v))} for _ in range(2)]
        got, again = (kernels.flash_attention_backward(*given, config=config, **asked, **to) for to in into)
        assert not repeats or all(x.tobytes() == y.tobytes() for x, y in zip(got, again, strict=True))
        of_sinks = [0.0, 0.0]
        for i, rows in enumerate(map(made.rows, range(len(made.queries)))):
            first, end = (int(lengths["cu_seqlens_k"][i + j]) for j in range(2))
            keys = slice(first, first + made.lengths[i])
            wanted = exact_gradients(dout[None, rows], made.q[None, rows], made.k[i][None], made.v[i][None], **options)
            of_sinks = [x + y[3] for x, y in zip(of_sinks, wanted, strict=True)] if "sinks" in options else of_sinks
            parts = [x[None, s] for x, s in zip(got, (rows, keys, keys))]
            close_gradients(parts, (wanted[0][:3], wanted[1][:3]))
            assert not any(x[keys.stop : end].any() for x in got[1:3])
        if "sinks" in options:
            error = np.abs(got[3] - of_sinks[0])
            assert (error <= float(ml_dtypes.finfo(dtype).eps) * (of_sinks[1] + np.abs(of_sinks[0])) + 1e-6).all()


def configs(rng: Rng) -> None:
    """Those that are offered, and the one that is chosen, pass the checks of whoever takes them."""
    narrow, heads_k, page = rng.random() < 0.3, any_of(rng, 1, 8), any_of(rng, 0, 0, 1, 16, 24, 64)
    dims = [int(rng.integers(1, 17)) * 16 if narrow else int(rng.integers(1, 33)) * 8 for _ in range(2)]
    keys, some = any_of(rng, 1, 7, 300, 8192, 131072), [bool(rng.integers(2)) for _ in range(6)]
    flags = dict(
        zip(("has_softcap", "return_lse", "varlen", "has_seqused_k", "has_alibi", "has_sinks"), some, strict=True)
    )
    of = AttentionProblem(
        any_of(rng, 1, 7, 64, 65535), any_of(rng, 1, 3, 16, 64, 300, 4096), keys, heads_k * any_of(rng, 1, 3, 4, 16, 128), heads_k,
        dims[0], dims[1], Float8E4M3FN if narrow else any_of(rng, Float16, BFloat16), any_of(rng, None, 0, 100), any_of(rng, None, 0, 50),
        page_size=page, kv_capacity=keys if page else 0, score_mod=check_score_mod(lowered) if rng.random() < 0.3 else None,
        out_dtype=BFloat16 if narrow else None, **flags,
    )  # fmt: skip
    values = any_of(rng, 8, 64, 128, 264, 384, 512)
    asked: list[tuple[Any, Any]] = [(attention.REGISTRY, of)]
    if not narrow and not page:
        asked.append((bwd.REGISTRY, AttentionBackwardProblem(of, some[0])))
    stored = any_of(rng, None, Float8E4M3FN, Float8E5M2) if values % 128 == 0 else None
    shape = (of.batch, of.seqlen_q, of.heads, keys, values + 64, values)
    asked.append((mla.REGISTRY, MlaProblem(*shape, cache_dtype=stored)))
    for chooses, problem in asked:
        chooses.choose(problem, HOPPER)
        for choice in chooses.choices(problem, HOPPER):
            wrong = choice.implementation.validate(problem, choice.config, HOPPER)
            assert not wrong, (problem, choice.config, wrong)
            assert choice.cost > 0


KINDS = {f.__name__: f for f in (forward, gradients, configs)}


def attempt(kind: str, seed: int) -> None:
    """One kernel, on the CPU target."""
    with np.errstate(all="ignore"), kiln.target("cpu"):
        KINDS[kind](np.random.default_rng([seed, *kind.encode()]))


if __name__ == "__main__":
    search(attempt, KINDS)
