"""Tensor maps made by hand are the bytes that the driver encodes, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_map_cases import TYPES, program, random_case

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("seed", range(40))
def test_random_maps_are_those_of_the_driver(seed):
    case = random_case(seed)
    memory = torch.zeros(case.elements, dtype=getattr(torch, TYPES[case.dtype][0]), device="cuda")
    out = torch.zeros((4, 16), dtype=torch.int64, device="cuda")
    program(case)(memory, out)
    found = out.cpu().numpy()
    assert found[0].tobytes() == case.driver(memory.data_ptr()), case
    np.testing.assert_array_equal(found[1], found[3], err_msg=str(case))
    np.testing.assert_array_equal(found[2], found[3], err_msg=str(case))
