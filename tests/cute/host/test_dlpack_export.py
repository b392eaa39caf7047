"""Tensors of Kiln in other libraries: the same memory, kept for as long as it is in use."""

import gc

import numpy as np
import pytest

from kiln import TFloat32
from kiln.cute.host import dlpack_export
from kiln.cute.runtime import from_dlpack


def test_other_libraries_share_the_memory():
    source = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensor = from_dlpack(source)
    seen = np.from_dlpack(tensor)
    assert (seen.shape, seen.strides) == (source.shape, source.strides)
    source[2, 1] = 9
    assert seen[2, 1] == 9
    torch = pytest.importorskip("torch")
    torch.from_dlpack(tensor)[0, 0] = 7
    assert source[0, 0] == 7


def test_memory_lives_as_long_as_it_is_used():
    gc.collect()
    before = len(dlpack_export._held)
    seen = np.from_dlpack(from_dlpack(np.arange(4)))
    gc.collect()
    assert seen.tolist() == [0, 1, 2, 3] and len(dlpack_export._held) == before + 1
    del seen
    gc.collect()
    assert len(dlpack_export._held) == before


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_goes(version):
    gc.collect()
    before = len(dlpack_export._held)
    capsule = from_dlpack(np.arange(4)).__dlpack__(max_version=version)
    assert len(dlpack_export._held) == before + 1
    del capsule
    assert len(dlpack_export._held) == before


def test_what_dlpack_cannot_say_is_refused():
    data = np.arange(4, dtype=np.float32)
    data.flags.writeable = False
    tensor = from_dlpack(data)
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    tensor.__dlpack__(max_version=(1, 0))
    with pytest.raises(BufferError, match="no copy"):
        tensor.__dlpack__(max_version=(1, 0), copy=True)
    rounded = from_dlpack(np.zeros(4, np.float32))
    rounded.element_type = TFloat32
    with pytest.raises(TypeError, match="DLPack has no element type for TFloat32"):
        rounded.__dlpack__()
