"""What tests of JAX share, for all its versions that Kiln takes."""

from __future__ import annotations

from typing import Any


def with_x64() -> Any:
    """While open, JAX has types of 64 bits."""
    import jax
    import jax.experimental

    made: Any = getattr(jax, "enable_x64", None) or jax.experimental.enable_x64  # of before 0.8
    return made(True)
