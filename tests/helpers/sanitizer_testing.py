"""What tests of the sanitizer share."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln
from kiln import cute


def found(main: Any, *arguments: Any) -> list[Any]:
    """What the sanitizer finds in a program."""
    with kiln.sanitize(raises=False) as report:
        main(*arguments)
    return report.findings


def shared(kind: Any, *shape: int, stride: Any = None) -> Any:
    """A tensor in shared memory."""
    layout = cute.make_layout(shape if len(shape) > 1 else shape[0], stride=stride)
    return cute.make_tensor(cute.arch.alloc_smem(kind, cute.cosize(layout), 16), layout)


def integers(*shape: int, most: int = 9) -> np.ndarray:
    """The same random numbers from 0 on, below `most`, every time."""
    return np.random.default_rng(8).integers(0, most, shape)
