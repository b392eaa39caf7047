"""Random graphs of tasks compute what the same tasks compute one after another, under the sanitizer."""

from __future__ import annotations

import numpy as np
import pytest
from random_tasks import WORDS, program, random_graph, reference

import kiln
from kiln.cute.runtime import from_dlpack


def run(seed):
    graph = random_graph(seed)
    memory = np.zeros(graph.iterations * WORDS + 4, np.int32)
    x = memory[-memory.ctypes.data % 16 // 4 :][: graph.iterations * WORDS].reshape(graph.iterations, WORDS)
    x[:] = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, x.shape)
    out = np.zeros((len(graph.nodes), graph.iterations, WORDS), np.int32)
    with kiln.target("cpu"), kiln.sanitize():
        program(graph)(from_dlpack(x, assumed_align=16), out, graph.iterations)
    np.testing.assert_array_equal(out, reference(graph, x), err_msg=f"seed {seed}: {graph}")


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed):
    run(seed)
