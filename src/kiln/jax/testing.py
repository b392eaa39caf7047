"""Arrays for trying kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from .._support import lazy

__dir__ = lazy.listing(__name__)

if TYPE_CHECKING:
    from collections.abc import Sequence


def create_tensor(
    shape: Sequence[int],
    dtype: Any,
    key: Any,
    *,
    minval: float = -2.0,
    maxval: float = 2.0,
    fill_value: Any = None,
    fill_arange: bool = False,
) -> Any:
    """Return an array of random numbers between two bounds, of one value, or that counts; works under `jax.jit`."""
    if fill_value is not None:
        return jnp.full(shape, fill_value, dtype)
    if fill_arange:
        size = 1
        for extent in shape:
            size *= extent
        return jnp.arange(size).reshape(shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return jax.random.randint(key, shape, int(minval), int(maxval) + 1).astype(dtype)
    return jax.random.uniform(key, shape, jnp.float32, minval, maxval).astype(dtype)
