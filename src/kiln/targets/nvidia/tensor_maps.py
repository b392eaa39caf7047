"""Encoding of tensor maps with the CUDA driver, and a cache of them: a call of the driver takes a microsecond."""
# pyright: reportReturnType=false

from __future__ import annotations

from ...native import (
    Array,
    Fn,
    Library,
    Ptr,
    address,
    atomic,
    atomic_store,
    extern,
    i32,
    local,
    native,
    ref,
    struct,
    text,
    u32,
    u64,
)
from ..host.libc import dlopen, dlsym, memcpy, memset
from ..host.tensor_map_rules import REFUSED
from ..host.tensor_maps import Finding, Request, broken, broken_rule, complete

maps: Library = Library("cuda_tensor_maps", prefix="kiln_cuda_")

WORDS = 22
"""Words of a request."""
MAP_BYTES = 128
ENTRIES = 256
"""A power of two."""
_FACTORS = tuple((number, pow(0x9E3779B97F4A7C15, number + 1, 1 << 64)) for number in range(WORDS))
"""Odd factors of the hash, one for each word of a request."""


@struct
class Entry:
    """An entry of the cache of maps. All zeros mean none, since no request has a rank of 0."""

    lock: u64
    request: Array[u64, 22]
    map: Array[u64, 16]


NOT_LOOKED_FOR, THERE, NOT_THERE = range(3)
_RTLD_NOW = 2
_INVALID_CONTEXT = 201
_NOT_FOUND = 500
"""The driver's own numbers: a thread without a context, a function that the driver lacks."""

driver = maps.variable("map_driver", i32)
tiled = maps.variable("map_tiled", u64)
im2col = maps.variable("map_im2col", u64)
entries = maps.variable("map_entries", Array[Entry, ENTRIES])


@extern
def memcmp(left: Ptr, right: Ptr, bytes_: u64) -> i32: ...


@native
def find_driver() -> None:
    """Look for the driver and its functions. Threads that do so at a time find the same."""
    state = i32(NOT_THERE)
    library = dlopen(text("libcuda.so.1"), _RTLD_NOW)
    if library != None:
        tiled.value = address(dlsym(library, text("cuTensorMapEncodeTiled")))
        im2col.value = address(dlsym(library, text("cuTensorMapEncodeIm2col")))
        start = address(dlsym(library, text("cuInit")))
        if start != 0 and Fn[[u32], i32](start)(0) == 0:
            state = i32(THERE)
    atomic_store(driver.place, state, "release")


@native
def enter_context() -> bool:
    """Make the primary context of device 0 this thread's current one, as launches do where there is none."""
    library = dlopen(text("libcuda.so.1"), _RTLD_NOW)
    if library == None:
        return False
    retain = Fn[[Ptr, i32], i32](dlsym(library, text("cuDevicePrimaryCtxRetain")))
    enter = Fn[[u64], i32](dlsym(library, text("cuCtxSetCurrent")))
    context = local(u64, 1)
    return retain(context, 0) == 0 and enter(context[0]) == 0


@native
def ask_driver(request: Ptr[Request], map_: Ptr) -> i32:
    """Return the driver's status."""
    sizes = ref(request).sizes
    strides = ref(request).strides
    steps = ref(request).element_strides
    if request.im2col != 0:
        if im2col.value == 0:
            return _NOT_FOUND
        encode_pixels = Fn[[Ptr, i32, i32, u64, Ptr, Ptr, Ptr, Ptr, u32, u32, Ptr, i32, i32, i32, i32], i32](
            im2col.value
        )
        return encode_pixels(
            map_,
            request.element,
            request.rank,
            request.base,
            sizes,
            strides,
            ref(request).corners,
            ref(request.corners)[3],
            request.box[0],
            request.box[1],
            steps,
            request.interleave,
            request.swizzle,
            request.promotion,
            request.fill,
        )
    if tiled.value == 0:
        return _NOT_FOUND
    encode = Fn[[Ptr, i32, i32, u64, Ptr, Ptr, Ptr, Ptr, i32, i32, i32, i32], i32](tiled.value)
    return encode(
        map_,
        request.element,
        request.rank,
        request.base,
        sizes,
        strides,
        ref(request).box,
        steps,
        request.interleave,
        request.swizzle,
        request.promotion,
        request.fill,
    )


@native
def place_of(request: Ptr[u64]) -> Ptr[Entry]:
    """Return where a request is kept."""
    hash_ = u64(0)
    for number, factor in _FACTORS:
        hash_ = hash_ + request[number] * factor
    return ref(entries.place)[hash_ >> (64 - ENTRIES.bit_length() + 1)]


@maps.export
def encode_tensor_map(request: Ptr[Request], fixed_part: Ptr, map_: Ptr, finding: Ptr[Finding]) -> i32:
    """Write the tensor map of a request; return 0, or the rule that it breaks.

    Without a driver the map is zeros, and the launch will fail. A locked entry is skipped instead of awaited.
    """
    complete(request, fixed_part)
    entry = place_of(Ptr[u64](request))
    if atomic("xchg", ref(entry).lock, 1, "acquire") == 0:
        fixed_part = memcmp(ref(entry).request, request, 8 * WORDS) == 0
        if fixed_part:
            memcpy(map_, ref(entry).map, MAP_BYTES)
        atomic_store(ref(entry).lock, 0, "release")
        if fixed_part:
            return 0
    rule = broken_rule(request, finding)
    if rule != 0:
        return rule
    if driver.value == NOT_LOOKED_FOR:
        find_driver()
    if driver.value == NOT_THERE:
        memset(map_, 0, MAP_BYTES)
        return 0
    status = ask_driver(request, map_)
    if status == _INVALID_CONTEXT and enter_context():
        status = ask_driver(request, map_)
    if status != 0:
        return broken(finding, REFUSED, 0, status)
    if atomic("xchg", ref(entry).lock, 1, "acquire") == 0:
        memcpy(ref(entry).request, request, 8 * WORDS)
        memcpy(ref(entry).map, map_, MAP_BYTES)
        atomic_store(ref(entry).lock, 0, "release")
    return 0
