"""Products of warp groups as programs write them, on the hardware: all types, majors and sources, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from warpgroup_products import CASES, F16, TILE, exact, name_of, numbers, product, restarted

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="wgmma is of sm_90a"
    ),
]

ON_GPU = {"to_device": lambda x: torch.from_numpy(x).cuda(), "to_host": lambda x: x.cpu().numpy()}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_products(case: Any) -> None:
    a, b, _, _, (m, n, k), *_ = case
    left, right = numbers((m, k), a, 0), numbers((n, k), b, 1)
    np.testing.assert_array_equal(product(*case)(left, right, **ON_GPU).astype(np.float64), exact(left, right))


@pytest.mark.parametrize("t", [0, 2, 4])
def test_the_flag_in_dynamic_control_flow(t: int) -> None:
    left, right = numbers((64, 64), F16, 2), numbers((64, 64), F16, 3)
    first = 16 * min(t, 3)
    found = product(*TILE, steps=restarted)(left, right, t, **ON_GPU)
    np.testing.assert_array_equal(found, exact(left[:, first:], right[:, first:]))
