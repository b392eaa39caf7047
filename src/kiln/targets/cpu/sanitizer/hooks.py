"""Calls of the detector that expansions of operations add to an instrumented build."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ....base_dsl.target import value_bytes
from ....dialects import nvgpu
from ....mlir import ir
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import AnyOp
from ..runtime.engine_table import BULK_LOAD, BULK_SOURCE, BULK_STORE, COPY, TCGEN05_ST, THREAD, WGMMA
from ..runtime.record_access import Fields, block_of
from ..runtime.records import Barrier, BlockRecord, FrameHeader
from .state import IN_GLOBAL, IN_SHARED, MAPS, RELEASED_MAPS, SCOPES, SCRATCH, USES_LOADS

if TYPE_CHECKING:
    from ..expand import Expander
    from .instrument import Instrumentation

_ORDERING = {
    kind.OPERATION_NAME.partition(".")[2]
    for kind in nvgpu.OPERATIONS
    if kind.CONVERGED and (kind.ORDERS == "warp" or kind.__module__ == nvgpu.tcgen05.__name__)
} - {nvgpu.tcgen05.Tcgen05RelinquishAllocPermit.OPERATION_NAME.partition(".")[2]}
"""Warp operations that order memory; those of tensor memory are executed by converged warps."""
_CHECKED_BY_DEFAULT = {
    "barrier": "barrier_by_default",
    "box": "box",
    "request": "request",
    "tensor_allocated": "tensor_allocated",
    "tensor_freed": "tensor_freed_by_default",
    "tensor_access": "tensor_access",
    "tensor_mma": "tensor_mma",
    "tensor_copy": "tensor_copy",
    "tensor_shift": "tensor_shift",
    "wgmma": "wgmma_by_default",
}
"""What default checks call at an event: those that access memory, and barriers, for which a thread may exit too early."""


def hooks_of(x: Expander, op: AnyOp) -> Hooks:
    """Return what the expansion of an operation adds to an instrumented build; nothing in a normal one."""
    if x.module.recorder is not None:
        return cast("Hooks", x.module.recorder.hooks(x, op))  # it has the same methods
    return _NO_HOOKS if x.module.sanitizer is None else Hooks(x, op, x.module.sanitizer)


class Hooks:
    """Calls of the detector that the expansion of an operation adds to an instrumented build."""

    def __init__(self, x: Expander, op: AnyOp, sanitizer: Instrumentation) -> None:
        self.x = x
        self.op = op
        self.sanitizer = sanitizer

    def _call(self, b: Builder, name: str, *arguments: Any) -> ir.Value | None:
        if self.sanitizer.plain:
            if name not in _CHECKED_BY_DEFAULT:
                return None
            name = _CHECKED_BY_DEFAULT[name]
        if self.x.function.is_kernel:
            self.sanitizer.facts[self.x.function.name].ordered = True
        return self.sanitizer.call(self.x.module, b, name, *arguments)

    def _site(self, what: str) -> int:
        return self.sanitizer.site(self.op, self.x, what)

    # -- barriers ----------------------------------------------------------------------------------------

    def arrival(
        self, b: Builder, frame: ir.Value, number: ir.Value | None, count: ir.Value | None, mode: int, arrive: Any
    ) -> Any:
        """Run `arrive`, which arrives at a barrier (the cluster's if it has no number) and returns a status or None.

        A status of 2 means that the arrival did not count yet. `mode` is as in `barriers.barrier`.
        """
        block = block_of(b, frame)
        if number is None:
            record = Fields(b, block.load("cluster"), BlockRecord).at("cluster_barrier")
        else:
            record = b.byte_gep(block.at("barriers"), b.binary("muli", number, b.i32(ctypes.sizeof(Barrier))))
        phase = b.load(int_type(32), b.byte_gep(record, Barrier.phase.offset))  # pyright: ignore[reportAttributeAccessIssue]
        status = arrive()
        came = b if status is None else b.if_(b.compare("ne", status, 2))
        what = [record, 16 if number is None else number, phase, 0 if count is None else count]
        self._call(came, "barrier", *what, self._site("barrier"), mode)
        return status

    def passed(self, b: Builder, cluster: bool = False) -> None:
        """After a wait at a barrier."""
        self._call(b, "passed_cluster" if cluster else "passed")

    def meet(self, b: Builder, mask: ir.Value, what: str) -> None:
        """Before a meeting of lanes."""
        if what != "elect" or self._loads_tensor_memory():
            orders = USES_LOADS if what == "elect" else int(what in _ORDERING)
            self._call(b, "meet", mask, self._site(what), orders)

    def met(self, b: Builder, what: str) -> None:
        """After a meeting of lanes: shuffles and votes do not order memory."""
        if what in _ORDERING or (what == "elect" and self._loads_tensor_memory()):
            self._call(b, "passed")

    def _loads_tensor_memory(self) -> bool:
        return self.sanitizer.facts[self.x.function.name].loads

    # -- accesses ----------------------------------------------------------------------------------------

    def before_access(
        self, b: Builder, address: ir.Value, bytes_: int | ir.Value, write: bool, **more: Any
    ) -> ir.Value:
        """Before an access; returns the address to use."""
        return self.sanitizer.checked_address(self.x, self.op, b, address, None, bytes_, write, **more)

    def _attribute(self, name: str, default: str) -> str:
        return self.op.attributes[name].value if name in self.op.attributes else default  # pyright: ignore[reportAttributeAccessIssue]

    def rows(self, b: Builder, address: ir.Value, count: int, stores: bool) -> ir.Value:
        """Before an `ldmatrix` or `stmatrix`, whose first `count` lanes give the address of a row each.

        Returns the address to use.
        """
        assert self.x.function.frame is not None
        thread = Fields(b, self.x.function.frame, FrameHeader).load("thread")
        lane = b.binary("andi", thread, 31)
        used = self.x.at_entry(self.op.location).alloca(address.type)
        b.store(address, used)
        gives = b.if_(b.compare("ult", lane, count))
        gives.store(self.before_access(gives, address, 16, write=stores, alignment=16), used)
        return b.load(address.type, used)

    def atomic(self, b: Builder, address: ir.Value, type_: ir.Type, modifiers: str = "") -> ir.Value:
        """Before an atomic update; order and scope are the operation's, or are among the modifiers of PTX."""
        words = modifiers.split(".")
        order = next((w for w in words if w in ("acquire", "release", "acq_rel")), self._attribute("order", "relaxed"))
        scope = next((w for w in words if w in SCOPES), self._attribute("scope", "gpu"))
        return self._atomic(b, address, value_bytes(type_), order, scope, loads=True, stores=True)

    def _atomic(
        self, b: Builder, address: ir.Value, bytes_: int, order: str, scope: str, loads: bool, stores: bool
    ) -> ir.Value:
        orders = {"acquire": 1, "release": 2, "acq_rel": 3, "sc": 3}.get(order, 0)
        how = 2 if loads and stores else int(stores)
        what = "atomic update" if how == 2 else "atomic write" if stores else "atomic read"
        number = SCOPES.index(scope)
        address = self.before_access(
            b, address, bytes_, write=stores, alignment=bytes_, atomic=True, scope=number, what=what, written=loads
        )
        if how == 2:
            self._call(b, "atomic", address, bytes_, orders, number)
            return address
        name = "atomic_store" if stores else "atomic_load"
        place = self._call(b, name, address, bytes_, orders, number, self._site(what))
        return address if place is None else b.value("llvm.inttoptr", ptr_type(), (place,))

    def ordered(self, b: Builder, address: ir.Value, type_: ir.Type, modifiers: str, stores: bool) -> ir.Value:
        """Before a load or store with modifiers of PTX: an atomic one, or a plain one; returns the address to use."""
        bytes_ = value_bytes(type_)
        words = modifiers.replace("::", ".").split(".")
        strong = [w for w in words if w in ("acquire", "release", "relaxed", "volatile", "mmio", "acq_rel", "sc")]
        if not strong:
            noncoherent = "nc" in words
            what = "non-coherent load" if noncoherent else ""
            return self.before_access(
                b, address, bytes_, write=stores, alignment=bytes_, noncoherent=noncoherent, what=what
            )
        scope = next((w for w in words if w in SCOPES), "sys")
        return self._atomic(b, address, bytes_, strong[0], scope, loads=not stores, stores=stores)

    def depends(self, b: Builder) -> None:
        """After a wait for the launches before."""
        self._call(b, "depends")

    def fence(self, b: Builder, kind: str) -> None:
        """Before a fence, given by its PTX name."""
        words = kind.replace("::", ".").split(".")
        if "proxy" in words and "tensormap" in words:
            self.sanitizer.use(BULK_SOURCE)
            self._call(b, "view", RELEASED_MAPS if "release" in words else MAPS)
            return
        if "proxy" in words:
            spaces = [IN_SHARED] * ("global" not in words) + [IN_GLOBAL] * ("shared" not in words)
            self._call(b, "view", sum(spaces))
            return
        if words[0] == "mbarrier_init":
            self._call(b, "view", IN_SHARED)
        scope = next((w for w in words if w in SCOPES), "sys")
        self._call(b, "fence", SCOPES.index(scope), int("sc" in words))

    # -- mbarriers ---------------------------------------------------------------------------------------

    def _mbarrier_site(self, address: ir.Value, what: str) -> int:
        return self.sanitizer.site(self.op, self.x, what, memory=self.sanitizer.name_of(address))

    def mbarrier_init(self, b: Builder, address: ir.Value, count: ir.Value) -> ir.Value:
        """Before an mbarrier is initialized; returns the address to use."""
        used = self.before_access(b, address, 8, write=True, alignment=8, what="initialization of an mbarrier")
        self._call(b, "mbarrier_init", address, count, self._mbarrier_site(address, "mbarrier init"))
        return used

    def mbarrier_inval(self, b: Builder, address: ir.Value) -> None:
        self._call(b, "mbarrier_inval", address)

    def mbarrier_arrive(
        self,
        b: Builder,
        address: ir.Value,
        count: ir.Value | int,
        bytes_: ir.Value | int,
        how: int | None = None,
        modifiers: str = "",
    ) -> ir.Value:
        """Before an arrival; `how` is as in `mbarriers.mbarrier_arrive`. Returns the address to use.

        By default it is the operation's order. Inline PTX gives order and scope as modifiers; without a scope, an
        arrival at another block's mbarrier is taken for one of the cluster, as programs mean it.
        """
        words = modifiers.split(".")
        if how is None:
            how = int("relaxed" in words or self._attribute("order", "release") == "relaxed")
        scope = next((w for w in words if w in SCOPES), self._attribute("scope", "cluster"))
        used = self._use(b, address, "arrival at an mbarrier", engine=BULK_LOAD if how == 1 + BULK_LOAD else THREAD)
        site = self._mbarrier_site(address, "mbarrier arrive")
        self._call(b, "mbarrier_arrive", address, count, bytes_, site, how, SCOPES.index(scope))
        return used

    def _use(self, b: Builder, address: ir.Value, what: str, engine: int = 0) -> ir.Value:
        # not an atomic write: arrivals and waits never collide with each other, only with initialization
        return self.before_access(
            b, address, 8, write=False, alignment=8, atomic=True, engine=engine, what=what, written=False
        )

    def mbarrier_after(self, b: Builder, address: ir.Value) -> None:
        """After an mbarrier changed."""
        self._call(b, "mbarrier_after", address)

    def mbarrier_wait(self, b: Builder, address: ir.Value, phase: ir.Value) -> ir.Value:
        """Before a wait for the phase of a parity; returns the address to use."""
        used = self._use(b, address, "wait for an mbarrier")
        self._call(b, "mbarrier_waits", address, phase, self._mbarrier_site(address, "mbarrier wait"))
        return used

    def mbarrier_waited(self, b: Builder, address: ir.Value, phase: ir.Value, done: ir.Value, relaxed: bool) -> None:
        """After a wait; `done` is whether the phase was complete."""
        self.sanitizer.relaxes |= relaxed
        self._call(b, "mbarrier_waited", address, phase, b.value("arith.extui", int_type(32), (done,)), int(relaxed))

    # -- asynchronous copies -----------------------------------------------------------------------------

    def copy(
        self, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
    ) -> tuple[ir.Value, ir.Value]:
        """Before a `cp.async`; returns the addresses to use."""
        self.sanitizer.use(COPY)
        self._call(b, "copies", target, source, bytes_)
        target = self.before_access(
            b, target, size, write=True, alignment=size, engine=COPY, what="asynchronous copy to"
        )
        return target, self.before_access(
            b, source, bytes_, write=False, alignment=size, engine=COPY, what="asynchronous copy from"
        )

    def bulk_copy(
        self,
        b: Builder,
        target: ir.Value,
        source: ir.Value,
        bytes_: ir.Value,
        mbarrier: ir.Value | None = None,
        combines: bool = False,
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
        """Before a bulk copy, whose bytes an mbarrier may count; `combines` for a reduction.

        Returns the target, source, bytes and mbarrier to use.
        """
        self.sanitizer.use(BULK_LOAD if mbarrier is not None else BULK_SOURCE)
        reads, writes = (BULK_LOAD, BULK_LOAD) if mbarrier is not None else (BULK_SOURCE, BULK_STORE)
        if mbarrier is not None:
            self._call(b, "bulk", mbarrier, self._mbarrier_site(mbarrier, "mbarrier arrive"))
        from_ = self.before_access(b, source, bytes_, write=False, alignment=16, engine=reads, what="bulk copy from")
        what = "bulk reduction of" if combines else "bulk copy to"
        to = self.before_access(b, target, bytes_, write=True, alignment=16, engine=writes, atomic=combines, what=what)
        if mbarrier is not None:
            mbarrier = self.mbarrier_arrive(b, mbarrier, 0, bytes_, 1 + BULK_LOAD)
        else:
            self._call(b, "stored_in_bulk", self._site("bulk copy from"))
        is_elsewhere = b.binary("ori", _differ(b, source, from_), _differ(b, target, to))
        return to, from_, _fitting(b, is_elsewhere, bytes_), mbarrier

    def filled(self, b: Builder, address: ir.Value, bytes_: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Before a bulk store; returns the address and the bytes to use."""
        used = self.before_access(b, address, bytes_, write=True, alignment=8, what="bulk store to")
        return used, _fitting(b, _differ(b, address, used), bytes_)

    def box(
        self,
        b: Builder,
        map_: ir.Value,
        shared: ir.Value,
        mbarrier: ir.Value | None,
        places: Sequence[ir.Value],
        what: str,
        mask: ir.Value | int = -1,
        cta_group: int = 1,
    ) -> None:
        """Before a TMA copy; `places` are coordinates and im2col offsets in memory, and the number of coordinates."""
        names = {"load": ("box to", "box of"), "store": ("box from", "box in"), "reduce": ("box from", "box into")}
        self.sanitizer.use(BULK_LOAD if what == "load" else BULK_SOURCE)
        low, high, site = self.sanitizer.shared_place(self.x, self.op, shared, names[what][0])
        sites = [self._site(names[what][1]), self._site("tensor map")]
        arrival = 0 if mbarrier is None else self._mbarrier_site(mbarrier, "mbarrier arrive")
        facts = self.sanitizer.facts[self.x.function.name]
        facts.writes_unknown |= what != "load"
        numbers = [list(names).index(what), mask, low, high, site, *sites, arrival, int(facts.swizzled), cta_group]
        self._call(b, "box", map_, shared, b.null() if mbarrier is None else mbarrier, *places, *numbers)

    def edit(self, b: Builder, map_: ir.Value) -> None:
        """Before an edit of a tensor map in memory."""
        self.before_access(b, map_, 128, write=False, alignment=16)
        self.before_access(b, map_, 128, write=True, alignment=16, what="edit of a tensor map", written=False)

    def publish(self, b: Builder, target: ir.Value, source: ir.Value) -> None:
        """Before the first lane of a warp copies a tensor map and releases it."""
        self.sanitizer.use(BULK_SOURCE)
        self.before_access(b, source, 128, write=False, alignment=128)
        self.before_access(b, target, 128, write=True, alignment=16, what="edit of a tensor map")
        self._call(b, "view", RELEASED_MAPS)

    def request(self, b: Builder, response: ir.Value, mbarrier: ir.Value, multicast: bool) -> None:
        """Before a request to cancel a cluster, whose answer is written to `response`."""
        self.sanitizer.use(BULK_LOAD)
        low, high, site = self.sanitizer.shared_place(self.x, self.op, response, "answer to")
        arrival = self._mbarrier_site(mbarrier, "mbarrier arrive")
        self._call(b, "request", response, mbarrier, int(multicast), low, high, site, arrival)

    def store_async(self, b: Builder, target: ir.Value, bytes_: int, mbarrier: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Before an asynchronous store whose bytes an mbarrier counts; returns the addresses to use."""
        self.sanitizer.use(BULK_LOAD)
        self._call(b, "bulk", mbarrier, self._mbarrier_site(mbarrier, "mbarrier arrive"))
        used = self.before_access(
            b, target, bytes_, write=True, alignment=4, engine=BULK_LOAD, what="asynchronous store to"
        )
        return used, self.mbarrier_arrive(b, mbarrier, 0, bytes_, 1 + BULK_LOAD)

    def copies_arrive(self, b: Builder, mbarrier: ir.Value) -> None:
        """Before an arrival after the completion of copies."""
        self.sanitizer.use(COPY)
        self.mbarrier_arrive(b, mbarrier, 1, 0, 1 + COPY)

    def commit(self, b: Builder, engine: int) -> None:
        """After a commit of operations that were issued to an engine."""
        self.sanitizer.use(engine)
        self._call(b, "commit", engine)

    def waited(self, b: Builder, left: int | ir.Value, engine: int) -> None:
        """After a wait for groups of an engine."""
        self.sanitizer.use(engine)
        self._call(b, "waited", engine, left)

    def bulk_commit(self, b: Builder) -> None:
        """After a commit of bulk stores."""
        self.commit(b, BULK_STORE)
        self.commit(b, BULK_SOURCE)

    def bulk_waited(self, b: Builder, left: int | ir.Value, read: bool) -> None:
        """After a wait for groups of bulk stores, with `read` only for the reads of their sources."""
        self.waited(b, left, BULK_SOURCE)
        if not read:
            self.waited(b, left, BULK_STORE)

    # -- tensor memory -----------------------------------------------------------------------------------

    def _tensor(self, b: Builder, name: str, *arguments: Any) -> None:
        self.sanitizer.use(TCGEN05_ST)  # the last of those of tensor memory
        self._call(b, name, *arguments)

    def _looks(self) -> int:
        return int(self.sanitizer.facts[self.x.function.name].swizzled)

    def tensor_allocates(self, b: Builder, cta_group: int) -> None:
        """Before an allocation."""
        if cta_group == 2:
            self._tensor(b, "tensor_allocates", self._site("allocation of tensor memory"))

    def tensor_allocated(self, b: Builder, address: ir.Value, columns: ir.Value) -> None:
        """After an allocation, in each lane."""
        self._tensor(b, "tensor_allocated", address, columns)

    def tensor_freed(self, b: Builder, address: ir.Value, columns: ir.Value, cta_group: int) -> None:
        """Before columns are freed, in the first lane that goes on after the warp has met."""
        self._tensor(b, "tensor_freed", address, columns, cta_group, self._site("tcgen05.dealloc"))

    def tensor_access(self, b: Builder, address: ir.Value, form: int, stores: bool) -> None:
        """In the first lane that goes on after a warp has met at a load or store."""
        self._tensor(b, "tensor_access", address, form, int(stores), self._site(f"tcgen05.{'st' if stores else 'ld'}"))

    def tensor_used(self, b: Builder) -> None:
        """After a load, if the thread uses its values at once."""
        if "kiln.loaded" not in self.op.attributes:
            self._tensor(b, "tensor_used")

    def tensor_waits(self, b: Builder, stores: bool) -> None:
        """Before the lanes of a warp meet at a wait for loads or stores."""
        self._tensor(b, "tensor_waits", int(stores))

    def tensor_fence(self, b: Builder, before: bool) -> None:
        """At a tcgen05 fence before or after a synchronization of threads."""
        self._tensor(b, "tensor_fence", int(before))

    def tensor_mma(self, b: Builder, mma: ir.Value) -> None:
        """After an MMA is issued, whose operands are in memory."""
        sites = [self._site(f"{name} of a tcgen05.mma") for name in ("D", "A", "B", "scales", "metadata")]
        self._tensor(b, "tensor_mma", mma, self._looks(), *sites)

    def tensor_copy(self, b: Builder, address: ir.Value, descriptor: ir.Value, form: int) -> None:
        """After a copy to tensor memory is issued."""
        sites = [self._site(name) for name in ("tcgen05.cp", "source of a tcgen05.cp")]
        self._tensor(b, "tensor_copy", address, descriptor, form, self._looks(), *sites)

    def tensor_shift(self, b: Builder, address: ir.Value, cta_group: int) -> None:
        """After a shift is issued."""
        self._tensor(b, "tensor_shift", address, cta_group, self._site("tcgen05.shift"))

    def tensor_commit(self, b: Builder, mbarrier: ir.Value, mask: ir.Value) -> None:
        """Before a commit."""
        self._tensor(b, "tensor_commit", mbarrier, mask, self._mbarrier_site(mbarrier, "mbarrier arrive"))

    # -- WGMMAs -------------------------------------------------------------------------

    def wgmma(
        self, b: Builder, accumulator: tuple[ir.Value, int], a: tuple[ir.Value, int], right: ir.Value, kind: int
    ) -> None:
        """Before a WGMMA. The accumulator and A are given by address and bytes; A in smem as a descriptor and 0."""
        self.sanitizer.use(WGMMA)
        looks = int(self.sanitizer.facts[self.x.function.name].swizzled)
        smem = self.x.function.smem
        site = self._site("wgmma")
        self._call(b, "wgmma", *accumulator, *a, right, kind, smem, looks, site)

    def wgmma_fence(self, b: Builder) -> None:
        self._call(b, "wgmma_fence")

    def wgmma_waited(self, b: Builder, left: int) -> None:
        """After a wait for groups of WGMMAs."""
        self.sanitizer.use(WGMMA)
        self._call(b, "wgmma_waited", left)


def _fitting(b: Builder, is_elsewhere: ir.Value, bytes_: ir.Value) -> ir.Value:
    """Return the bytes of an access, no more than there are where the detector gave it another address."""
    return b.select(is_elsewhere, b.binary("minui", bytes_, b.const(bytes_.type, SCRATCH)), bytes_)


def _differ(b: Builder, one: ir.Value, other: ir.Value) -> ir.Value:
    """Return whether two pointers differ."""
    return b.compare("ne", *(b.value("llvm.ptrtoint", int_type(64), (pointer,)) for pointer in (one, other)))


class NoHooks:
    """The hooks of a normal build: they add nothing, and accesses keep their addresses."""

    def arrival(self, b: Builder, frame: Any, number: Any, count: Any, mode: int, arrive: Any) -> Any:
        return arrive()

    def before_access(self, b: Builder, address: ir.Value, *_what: Any, **_how: Any) -> ir.Value:
        return address

    atomic = ordered = before_access

    rows = mbarrier_init = mbarrier_arrive = mbarrier_wait = before_access

    def copy(self, b: Builder, target: ir.Value, source: ir.Value, *_sizes: Any) -> tuple[ir.Value, ir.Value]:
        return target, source

    def filled(self, b: Builder, address: ir.Value, bytes_: ir.Value) -> tuple[ir.Value, ir.Value]:
        return address, bytes_

    def bulk_copy(
        self,
        b: Builder,
        target: ir.Value,
        source: ir.Value,
        bytes_: ir.Value,
        mbarrier: ir.Value | None = None,
        **_how: Any,
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]:
        return target, source, bytes_, mbarrier

    def store_async(self, b: Builder, target: ir.Value, bytes_: int, mbarrier: ir.Value) -> tuple[ir.Value, ir.Value]:
        return target, mbarrier

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_keywords: None


_NO_HOOKS: Any = NoHooks()
