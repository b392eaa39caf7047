"""Primitives of mbarriers: 64 bits of shared memory that count arrivals and bytes."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32, Int64
from ...cute import arch
from ...cute.arch.values import choice, i32
from ...cute.deferred_dialects import nvgpu
from ...hardware.limits import MBARRIER_ARRIVALS
from .addresses import is_remote, shared, word


def _barrier(addr: object, what: str) -> Any:
    barrier = shared(addr, what)
    if is_remote(barrier):
        raise type_error(f"{what}() of an mbarrier of another CTA", "only arrivals and expect_tx reach other CTAs")
    return barrier


def mbarrier_init(addr: object, count: object, *, loc: object = None, ip: object = None) -> None:
    """Initialise an mbarrier that expects `count` arrivals a phase; `fence_mbarrier_init` and a barrier follow."""
    if isinstance(count, int) and not 1 <= count <= MBARRIER_ARRIVALS:
        raise type_error(f"mbarrier_init() of {count} arrivals", f"1 to {MBARRIER_ARRIVALS}")
    arch.mbarrier_init(_barrier(addr, "mbarrier_init"), count)


def _acquires_cluster(scope: object, order: object) -> bool:
    """Return whether a wait acquires what other CTAs of the cluster released; every wait acquires from its own CTA."""
    if order is not None:
        choice("order", order, ("acquire", "relaxed"))
    return scope is not None and choice("scope", scope, ("cta", "cluster")) == "cluster"


def mbarrier_inval(addr: object, *, loc: object = None, ip: object = None) -> None:
    """Invalidate an mbarrier, so that its memory can be used for something else."""
    nvgpu.mbarrier.mbarrier_inval(_barrier(addr, "mbarrier_inval").ir_value())


def _arrive(what: str, addr: object, operand: object, scope: object, relaxed: bool | None) -> Int64 | None:
    """Emit an arrival; return the state of the phase before it for an mbarrier of this CTA."""
    where = shared(addr, what)
    tx = what.endswith("expect_tx")
    remote = is_remote(where)
    how = "" if scope is None else choice("scope", scope, ("cta", "cluster"))
    order = ""
    if remote or relaxed or how == "cluster":
        order = f".{'relaxed' if relaxed else 'release'}.{'cluster' if remote else how or 'cta'}"
    suffix = "" if operand is None else ", {$r1}"
    space = "shared::cluster" if remote else "shared::cta"
    target = "_" if remote else "{$w0}"
    code = f"mbarrier.arrive{'.expect_tx' * tx}{order}.{space}.b64 {target}, [{{$r0}}]{suffix};"
    reads = [word(where), *([] if operand is None else [Int32(operand)])]
    return arch.inline_ptx(code, write_only_types=[] if remote else [Int64], read_only_args=reads)


def mbarrier_arrive(
    addr: object,
    *,
    count: object = None,
    scope: object = None,
    relaxed: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int64 | None:
    """Arrive at an mbarrier of this CTA, and return its state; or of another CTA (`mapa`), at cluster scope."""
    return _arrive("mbarrier_arrive", addr, None if isinstance(count, int) and count == 1 else count, scope, relaxed)


def mbarrier_arrive_expect_tx(
    addr: object,
    txcount: object,
    *,
    scope: object = None,
    relaxed: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int64 | None:
    """Add bytes to the tx-count of the phase and arrive; the copies that bring the bytes follow."""
    return _arrive("mbarrier_arrive_expect_tx", addr, txcount, scope, relaxed)


def mbarrier_expect_tx(
    addr: object, txcount: object, *, scope: object = None, loc: object = None, ip: object = None
) -> None:
    """Add bytes to the tx-count of the phase, without an arrival."""
    where = shared(addr, "mbarrier_expect_tx")
    how = choice("scope", scope or "cta", ("cta", "cluster"))
    space = "cluster.shared::cluster" if is_remote(where) else f"{how}.shared::cta"
    code = f"mbarrier.expect_tx.relaxed.{space}.b64 [{{$r0}}], {{$r1}};"
    arch.inline_ptx(code, read_only_args=[word(where), Int32(txcount)])


def mbarrier_try_wait_parity(
    addr: object,
    phase: object,
    *,
    time_limit: object = 10_000_000,
    scope: object = None,
    order: object = None,
    loc: object = None,
    ip: object = None,
) -> Boolean:
    """Return whether the phase of a parity is complete; may wait for it, `time_limit` nanoseconds at most."""
    where = _barrier(addr, "mbarrier_try_wait_parity")
    limit = () if time_limit is None else (Int32(time_limit),)
    if _acquires_cluster(scope, order):
        return _wait(where, "try_wait.parity.acquire.cluster", Int32(phase), *limit)
    return Boolean._make(nvgpu.mbarrier.mbarrier_try_wait(where.ir_value(), i32(phase), *map(i32, limit)))


def _wait(where: Any, kind: str, *operands: Any) -> Boolean:
    places = ", ".join(f"{{$r{n + 1}}}" for n in range(len(operands)))
    code = f"{{ .reg .pred p; mbarrier.{kind}.shared::cta.b64 p, [{{$r0}}], {places}; selp.u32 {{$w0}}, 1, 0, p; }}"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[word(where), *operands]) != 0


def mbarrier_wait_parity(
    addr: object,
    phase: object,
    kind: object,
    *,
    scope: object = None,
    order: object = None,
    loc: object = None,
    ip: object = None,
) -> Boolean:
    """Return whether the phase of a parity is complete: now (TEST), or after a while (TRY)."""
    where = _barrier(addr, "mbarrier_wait_parity")
    how = choice("kind", kind, ("test", "try"))
    if _acquires_cluster(scope, order):
        return _wait(where, f"{how}_wait.parity.acquire.cluster", Int32(phase))
    return (arch.mbarrier_test_wait if how == "test" else arch.mbarrier_try_wait)(where, phase)


def mbarrier_try_wait_timelimit(
    addr: object,
    state: object,
    time_limit: object,
    *,
    scope: object = None,
    order: object = None,
    loc: object = None,
    ip: object = None,
) -> Boolean:
    """Return whether the phase of a state that an arrival returned is complete; may wait for it, `time_limit` ns at most."""
    where = _barrier(addr, "mbarrier_try_wait_timelimit")
    order_ = ".acquire.cluster" * _acquires_cluster(scope, order)
    return _wait(where, f"try_wait{order_}", Int64(state), Int32(time_limit))


def cp_async_mbarrier_arrive(addr: object, *, noinc: bool | None = None, loc: object = None, ip: object = None) -> None:
    """Arrive when this thread's `cp.async` copies so far are complete; `noinc`: the arrival is one of those expected."""
    where = _barrier(addr, "cp_async_mbarrier_arrive")
    if noinc:
        nvgpu.async_copy.cp_async_mbarrier_arrive(where.ir_value())
    else:
        arch.inline_ptx("cp.async.mbarrier.arrive.shared::cta.b64 [{$r0}];", read_only_args=[word(where)])


def mbarrier_complete_tx(
    addr: object, txcount: object, *, scope: object = None, loc: object = None, ip: object = None
) -> None:
    """Take bytes from the tx-count of the phase, as a copy that brings them does."""
    where = shared(addr, "mbarrier_complete_tx")
    how = choice("scope", scope or "cta", ("cta", "cluster"))
    space = "cluster.shared::cluster" if is_remote(where) else f"{how}.shared::cta"
    code = f"mbarrier.complete_tx.relaxed.{space}.b64 [{{$r0}}], {{$r1}};"
    arch.inline_ptx(code, read_only_args=[word(where), Int32(txcount)])


def mbarrier_arrive_nocomplete(addr: object, count: object, *, loc: object = None, ip: object = None) -> Int64:
    """Arrive `count` times at an mbarrier of this CTA, which does not complete the phase, and return its state."""
    where = _barrier(addr, "mbarrier_arrive_nocomplete")
    code = "mbarrier.arrive.noComplete.shared::cta.b64 {$w0}, [{$r0}], {$r1};"
    return arch.inline_ptx(code, write_only_types=[Int64], read_only_args=[word(where), Int32(count)])


def mbarrier_wait(addr: object, phase: object, *, loc: object = None, ip: object = None) -> None:
    """Wait until the phase of a parity is complete."""
    arch.mbarrier_wait(_barrier(addr, "mbarrier_wait"), phase)


def mbarrier_test_wait(
    addr: object, state: object, *, scope: object = None, order: object = None, loc: object = None, ip: object = None
) -> Boolean:
    """Return whether the phase of a state that an arrival returned is complete."""
    where = _barrier(addr, "mbarrier_test_wait")
    return _wait(where, f"test_wait{'.acquire.cluster' * _acquires_cluster(scope, order)}", Int64(state))


def mbarrier_try_wait(
    addr: object, state: object, *, scope: object = None, order: object = None, loc: object = None, ip: object = None
) -> Boolean:
    """Return whether the phase of a state that an arrival returned is complete; may wait for it a while."""
    where = _barrier(addr, "mbarrier_try_wait")
    return _wait(where, f"try_wait{'.acquire.cluster' * _acquires_cluster(scope, order)}", Int64(state))
