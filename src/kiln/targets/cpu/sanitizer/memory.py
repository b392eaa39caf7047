"""Memory of the detector: zeroed, kept in a list, freed with the launch."""

from __future__ import annotations

from ....native import Ptr, inline, native, size_of, u64
from ...host.libc import calloc, free, memcpy, memset
from .state import Chunk, state


@native
def allocate(size: u64) -> Ptr:
    """Allocate zeroed memory until the end of the launch."""
    st = state.place
    chunk = Ptr[Chunk](calloc(1, size + size_of(Chunk)))
    chunk.before = st.memory
    st.memory = chunk
    st.allocated += size
    return chunk + 1


@inline
def many(kind, count):
    """Allocate zeroed memory for `count` values of a type, until the end of the launch."""
    return Ptr[kind](allocate(u64(count) * size_of(kind)))


@inline
def clear(places, count=1):
    """Set `count` values at a place to zero."""
    memset(places, 0, u64(count) * size_of(type(places)._to))


@native
def free_all() -> None:
    st = state.place
    chunk = st.memory
    while chunk != None:
        before = chunk.before
        free(chunk)
        chunk = before
    st.memory = None
    st.allocated = 0


@inline
def copy(target, source):
    """Copy a structure."""
    memcpy(target, source, size_of(type(target)._to))


@inline
def lesser(a, b):
    return a if a < b else b


@inline
def greater(a, b):
    return a if a > b else b


@inline
def raise_to(place, value):
    """Raise the number at a place to at least `value`."""
    if place[0] < value:
        place[0] = value
