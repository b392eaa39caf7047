"""Objects of other libraries that stand for arrays and have no memory, which would pass for objects of the program."""

from __future__ import annotations

import functools
from typing import Any

from ...base_dsl.diagnostics import type_error


def check(x: object) -> None:
    """Raise an error for an object that stands for an array and has no memory, and say what to use."""
    if (mistake := reason(x)) is not None:
        raise type_error(*mistake)


def reason(x: Any) -> tuple[str, str] | None:
    """Return why an object that stands for an array cannot be read, and what to pass instead; None for others."""
    if is_jax_array(type(x)) and x.is_deleted():
        return (
            f"an array of JAX {x.aval.str_short()} that was deleted or donated is passed",
            "pass it before, or the array that the function gave instead of the donated one",
        )
    return _about(type(x))


def is_jax_array(kind: type) -> bool:
    """Return whether a type is that of JAX's arrays."""
    return kind.__name__ == "ArrayImpl" and kind.__module__.startswith("jaxlib")


@functools.lru_cache(maxsize=256)
def _about(kind: type) -> tuple[str, str] | None:
    """Return what is wrong with instances of a class, and what to write instead; None for others."""
    bases = {(str(base.__module__).partition(".")[0], base.__name__) for base in kind.__mro__}
    name = kind.__name__
    if ("jax", "Tracer") in bases:
        return (
            f"a tracer of JAX ({name}) is passed: inside jax.jit, jax.grad and jax.vmap an array has no memory",
            "call the kernel by kiln.jax.cutlass_call there",
        )
    if ("jax", "ShapeDtypeStruct") in bases:
        return (
            "a jax.ShapeDtypeStruct is passed: it describes an array, and has no memory",
            "pass an array; to compile without one, use make_fake_tensor",
        )
    if ("jax", "PRNGKeyArray") in bases:
        return "an array of JAX's random keys is passed: keys are no numbers", "pass jax.random.key_data(key)"
    if ("torch", "Proxy") in bases:
        return (
            f"a {name} of torch.fx is passed: while torch.fx traces a function, a tensor has no memory",
            "call an operator that you made with kiln.torch.op there",
        )
    return None
