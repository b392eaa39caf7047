"""Primitives of cluster launch control, and conversions of addresses between memories."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32
from ...cute import arch
from ...cute.arch.values import choice, kernel_only
from ...cute.deferred_dialects import nvgpu
from ...cute.tensor.array import Array
from ...cute.tensor.pointer import AddressSpace
from ...cute.tensor.raw_pointer import RawPointer, cast_space
from .addresses import shared, typed

_QUERIES = ("get_first_cta_id_x", "get_first_cta_id_y", "get_first_cta_id_z", "is_canceled")


def clusterlaunchcontrol_try_cancel(
    addr: object, mbar: object, *, multicast: bool | None = None, loc: object = None, ip: object = None
) -> None:
    """Ask for the work of a cluster that has not started; 16 bytes come to shared memory, and an mbarrier counts them.

    With `multicast` they come to all CTAs of the cluster, at the same places (sm_100).
    """
    what = "clusterlaunchcontrol_try_cancel"
    where, barrier = (shared(x, what).ir_value() for x in (addr, mbar))
    nvgpu.launch_control.clc_try_cancel(where, barrier, multicast=multicast or None)


def clusterlaunchcontrol_query_cancel(
    query_type: object, try_cancel_response: object, *, loc: object = None, ip: object = None
) -> Int32 | Boolean:
    """Return whether a response in shared memory has a canceled cluster, or x, y or z of that cluster's first CTA."""
    kernel_only("clusterlaunchcontrol_query_cancel")
    query = _QUERIES.index(choice("query_type", query_type, _QUERIES))
    answer = arch.clc_response(shared(try_cancel_response, "clusterlaunchcontrol_query_cancel"))
    return answer[3] != 0 if query == 3 else answer[query]


def cvta_to(addr: object, space: object, *, loc: object = None, ip: object = None) -> Array | RawPointer:
    """Return an address (or Array) as one in another memory: a `CvtaSpace`, GLOBAL or SHARED.

    What `mapa` returned stays an address in the shared memory of its CTA, whichever the space is called.
    """
    name = choice("space", space, ("global", "shared", "shared::cluster"))
    where = typed(addr, "cvta_to")
    if name == "global":
        if where.memspace not in (AddressSpace.gmem, AddressSpace.generic):
            raise type_error(f"cvta_to() GLOBAL of an address in {where.memspace.name}", "it is not in global memory")
        where = cast_space(where, AddressSpace.gmem)
    else:
        where = shared(where, "cvta_to")
    return addr.at(where) if isinstance(addr, Array) else where
