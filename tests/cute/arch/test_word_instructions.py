"""Instructions of arithmetic, as functions: what they give has the type of what they took."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack


@pytest.mark.parametrize("kind", [kiln.Int32, kiln.Uint32])
def test_words_stay_signed_or_unsigned(kind):
    @cute.kernel
    def kernel(out: cute.Tensor):
        word = out[0]
        chosen, combined = cute.arch.prmt(word, word, 0x0123), cute.arch.lop3(word, word, word, 0x80)
        assert type(chosen) is type(combined) is kind
        out[0], out[1] = chosen, combined

    @cute.jit
    def launch(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    out = np.array([0x01020384, 0], np.int32 if kind is kiln.Int32 else np.uint32)
    with kiln.target("cpu"):
        launch(from_dlpack(out))
    assert out.view(np.uint32).tolist() == [0x84030201, 0x01020384]
