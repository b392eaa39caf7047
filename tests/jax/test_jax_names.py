"""The names that programs import of the bridge to JAX, also by the alias `cutlass`."""

from __future__ import annotations

import pytest


def test_public_names_are_those_of_the_alias():
    pytest.importorskip("jax")
    import cutlass.jax
    import cutlass.jax.testing

    import kiln.jax
    import kiln.jax.testing

    assert cutlass.jax is kiln.jax and cutlass.jax.testing is kiln.jax.testing
    assert all(hasattr(kiln.jax, name) for name in kiln.jax.__all__)
    assert kiln.jax.is_available() and kiln.jax.TensorMode is kiln.jax.TensorSpec
    assert kiln.jax.from_dlpack(kiln.jax.testing.create_tensor((2, 3), "float32", None, fill_value=1.0)).shape == (2, 3)
    assert kiln.jax.testing.create_tensor((2, 3), "float32", None, fill_value=1.0).shape == (2, 3)
