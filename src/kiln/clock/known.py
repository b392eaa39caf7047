"""What the clock knows: the GPUs whose units it has, and the version of its predictions."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..hardware import devices
from . import units

if TYPE_CHECKING:
    from ..hardware.architectures import Architecture


def device_of(architecture: Architecture) -> str | None:
    """Return the GPU that programs of an architecture are predicted for; None if the units of none are known."""
    from .prediction import DEFAULTS  # start-up: it loads the targets

    device = DEFAULTS.get((architecture.generation.major, architecture.generation.minor))
    return device if device is not None and _has_units(device) else None


def device_named(name: str) -> str | None:
    """Return the GPU that a driver's name means, such as "NVIDIA H200"; None if its units are not known."""
    model = devices.model_of(name)
    return model.name if model is not None and _has_units(model.name) else None


def _has_units(device: str) -> bool:
    return (units.FOLDER / f"{device.lower().replace(' ', '_')}.json").exists()


@functools.cache
def version(device: str) -> str:
    """Return what predictions for a GPU depend on besides the kernel: the date of its units, and a hash of them and of the model.

    Predictions of one version can be compared with each other: they have the same errors.
    """
    measured = units.of(device)
    digest = hashlib.sha256(measured.dumps().encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return f"{measured.device} {measured.date} {digest.hexdigest()[:8]}"
