"""Instrumentation of a program: calls of the detector, sites, and what is known of its memory.

`Expansion.sanitizer` is an `Instrumentation`, or None in a normal build. Addresses are traced back to their origin (an
argument of the kernel, an allocation), which gives an access its bounds and its name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from ....analysis import effects, pointers
from ....base_dsl.compiler import source_span
from ....base_dsl.diagnostics import Span
from ....base_dsl.sanitizing import DEVICES
from ....base_dsl.target import value_bytes
from ....dialects import cute
from ....dialects.nvgpu.wgmma import Wgmma
from ....hardware.engines import TCGEN05_LD
from ....mlir import find, ir
from ...lowering.builder import Builder, constant_values, int_type, ptr_type
from ...lowering.expansion import AnyOp
from ..launch import prints, static_smem
from ..loop_iterations import LoopIterations, loops_around
from ..passes.coroutines import SUSPEND
from ..runtime.engine_table import GENERIC
from . import detector, inline, loop_bounds, numeric, swizzles, undefined
from .origins import MOST_MERGES, assigned_name, is_only_printed, is_uniform, location_name, register_arrays
from .program_memory import (
    AccessedMemory,
    Allocation,
    Argument,
    KernelInfo,
    SanitizedSite,
    SharedView,
    layout_leaves,
    swizzled_layout,
)
from .report_facts import ReportFacts
from .state import (
    ALIGNMENT_SHIFT,
    ATOMIC,
    ENGINE_SHIFT,
    GLOBAL,
    KIND_OF_RULE,
    MAX_LEAVES,
    MAX_OBJECTS,
    MOST_SCHEDULES,
    NO_INIT,
    NONCOHERENT,
    RULE,
    SCOPE_SHIFT,
    SHARED,
    SPACE_OF,
    SYSTEM,
    WRITE,
)

if TYPE_CHECKING:
    from ..expand import Expander, Expansion, FunctionState


@dataclasses.dataclass
class KernelFacts:
    """Facts about a kernel that its accesses imply."""

    checks: list[inline.AccessCheck] = dataclasses.field(default_factory=list)
    written: set[int] = dataclasses.field(default_factory=set)
    """Arguments that it writes."""
    writes_unknown: bool = False
    """Whether it writes to memory of unknown origin."""
    ordered: bool = False
    """Whether it has shared memory, atomics or other synchronization."""
    lone: bool = False
    swizzled: bool = False
    """Whether it has a swizzled tensor in shared memory."""
    loads: bool = False
    """Whether it loads from tensor memory."""


Origin = tuple[str, Any]


_DYNAMIC_END = 0x7FFF_FFFF


class Instrumentation(ReportFacts):
    """The instrumented build of one module."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(kinds)
        asked = {*kinds, "memory"} if self.plain else set(kinds)
        rules = {rule for rule, kind in KIND_OF_RULE.items() if kind in asked}
        if "memory" in asked:  # such an access is to another element than is meant
            rules.add("index-overflow")
        if self.plain:
            rules.add("barrier-exited")
        self.rules: int = sum(1 << RULE[rule] for rule in rules)
        self.granule: int = 4
        """The largest power of two that divides the address and size of every access, at most 4."""
        self.engines: int = 1
        """The engines in use are the first so many of `ENGINES`."""
        self.relaxes = False
        """Whether waits for mbarriers may be relaxed."""
        self.together: bool = False
        """Whether launches may overlap."""
        self.several: bool = DEVICES in self.kinds
        """Whether launches run beside those of other devices."""
        self._site_numbers: dict[SanitizedSite, int] = {}
        self._allocations: dict[ir.Value, Allocation] = {}
        self._private: dict[ir.Value, int] = {}
        self._multiplied: dict[ir.Value, str] = {}
        """Register arrays that WGMMAs use, and their names."""
        self._loaded: set[ir.Value] = set()
        """Register arrays that tensor memory is loaded to."""
        self._seen_through: dict[ir.Value, swizzles.Swizzled | None] = {}
        self._iterations = LoopIterations()
        self._kernel_numbers: dict[str, int] = {}
        self.facts: dict[str, KernelFacts] = {}

    # -- what is known about the program -----------------------------------------------------------------

    def remember(self, expansion: Expansion, func: ir.Operation) -> None:
        """Record a kernel before its arguments are retyped."""
        if not self.kernels:
            self.together = _launches_together(expansion.module)
        if cute.KERNEL not in func.attributes:
            return
        arguments: list[Argument | None] = []
        for value in func.regions[0].blocks[0].arguments:
            if not isinstance(value.type, (cute.Ptr, cute.Memref)):
                arguments.append(None)
                continue
            info = cute.info(value.type)
            name = location_name(value.location) or f"argument {len(arguments)}"
            bits = cute.element_bits(info.element)
            arguments.append(Argument(name, str(info.element), bits, info.layout, info.space))
        name = func.attributes["sym_name"].value
        self._kernel_numbers[name] = len(self.kernels)
        self.kernels.append(KernelInfo(name, arguments))
        self.facts[name] = KernelFacts()
        for op in Wgmma.all_in(func):
            for array in (*register_arrays(op.d), *register_arrays(op.a)):
                array.owner.operation.attributes[MULTIPLIED] = ir.UnitAttr.get(func.context)
        if "race" in self.kinds:
            self._watch_loads(expansion, func)
        if "memory" in self.kinds:
            self.facts[name].swizzled = swizzles.any_in(func)
            undefined.watch(self, expansion, func)

    def _watch_loads(self, expansion: Expansion, func: ir.Operation) -> None:
        """Tell the detector where a thread uses what it loaded from tensor memory, and so waits for the load.

        Values are followed through register arrays: a copy from register to register does not wait.
        """
        loads = find(func, effects.issued_to(TCGEN05_LD))
        self.facts[func.attributes["sym_name"].value].loads = bool(loads)
        if not loads:
            return
        readers: dict[ir.Value, list[ir.Value]] = {}
        for read in cute.Load.all_in(func):
            for array in register_arrays(read.memory):
                readers.setdefault(array, []).append(read.result)
        for load in loads:
            load.attributes[LOADED] = ir.UnitAttr.get(func.context)
        todo = [load.results[0] for load in loads]
        seen = set[ir.Value]()
        users = set[ir.Operation]()
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            for use in value.uses:
                user = use.owner.operation
                store = cute.Store.of(user)
                arrays = register_arrays(store.target) if store is not None else []
                for array in arrays:
                    array.owner.operation.attributes[LOADED] = ir.UnitAttr.get(func.context)
                    todo += readers.get(array, [])
                if user.name in _REGISTER_MOVES:
                    todo += list(user.results)
                elif not arrays:
                    users.add(user)
        for block in {user.block for user in users}:
            waited = False
            for op in list(block.operations):
                user = op.operation
                if user in users and not waited:
                    self.call(expansion, Builder(ir.InsertionPoint(user), user.location), "tensor_used")
                waited = (waited or user in users) and not effects.may_order(user.name)

    def enter(self, x: Expander) -> None:
        """Let the scheduler run a kernel even if nothing in it waits, unless its threads never synchronize."""
        facts = self.facts[x.function.name]
        state = x.function
        if self.plain:
            facts.checks = loop_bounds.hoist(x, facts.checks, facts.written)
        if "numeric" in self.kinds:
            numeric.watch(self, x)
        elif "memory" in self.kinds or self.plain:
            numeric.watch_multiplied(self, x, facts.checks)
        alone = not (self.together or self.several)
        facts.lone = alone and not (facts.ordered or state.waits or state.meets or state.copies or state.spins)
        inline.shorten(self, x, facts.checks, facts.written, facts.lone)
        if facts.lone:
            inline.say_who(x)
            return
        if self.plain and x.function.waits:
            return  # a schedule goes on as it does without the checks
        x.function.waits = True
        x.module.declare(SUSPEND, [], [])
        x.at_entry(x.function.operation.location).call(SUSPEND, [], [])

    def allocated(self, op: AnyOp, value: ir.Value, start: int, size: int | None) -> None:
        """Record an allocation of shared memory; without a size, all dynamic shared memory."""
        span, _ = source_span(op.location)
        own = location_name(op.location)
        name = own or assigned_name(span) or ("dynamic shared memory" if size is None else "shared memory")
        end = _DYNAMIC_END if size is None else start + size
        self._allocations[value] = Allocation(start, end, name, bool(own))

    def viewed(self, x: Expander, op: AnyOp, pointer: ir.Value, type_: ir.Type) -> None:
        """Record a tensor in shared memory; reports name it if its place and layout are static."""
        info = cute.info(type_)
        leaves = layout_leaves(swizzled_layout(info.layout)[1])
        number = self._kernel_numbers.get(x.function.name)
        if number is None or info.space != "smem" or info.leaves or leaves is None:
            return
        place = self._static_place(pointer)
        if place is None:
            return
        allocation, offset = place
        bits = cute.element_bits(info.element)
        last = sum((int(s) - 1) * int(d) for s, d in zip(*leaves, strict=True))
        span, _ = source_span(op.location)
        name = allocation.name if allocation.is_named else assigned_name(span) or allocation.name
        tensor = Argument(name, str(info.element), bits, info.layout, "smem")
        start = allocation.start + offset
        dynamic = allocation.end == _DYNAMIC_END
        view = SharedView(tensor, start, start + (last + 1) * bits // 8, dynamic)
        if view not in self.kernels[number].views:
            self.kernels[number].views.append(view)

    def _static_place(self, value: ir.Value) -> tuple[Allocation, int] | None:
        """Return the allocation that an address is in and its offset there, if that is known."""
        place = self._static_offset(value, self._allocations)
        return None if place is None else (self._allocations[place[0]], place[1])

    def _static_offset(self, value: ir.Value, bases: Container[ir.Value]) -> tuple[ir.Value, int] | None:
        """Return the base address of a value and its offset in bytes, if both are known."""
        offset = 0
        while value not in bases:
            op = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if op is None or op.name != "llvm.getelementptr":
                return None
            index = next(iter(op.attributes["rawConstantIndices"]))  # pyright: ignore[reportArgumentType]
            if len(op.operands) == 2:
                source = op.operands[1].owner
                if isinstance(source, ir.Block) or source.operation.name != "arith.constant":
                    return None
                index = source.operation.attributes["value"].value  # pyright: ignore[reportAttributeAccessIssue]
            offset += index * value_bytes(op.attributes["elem_type"].value)  # pyright: ignore[reportAttributeAccessIssue]
            value = op.operands[0]
        return value, offset

    def through(self, op: cute.Through, b: Builder, pointer: ir.Value) -> ir.Value:
        """Return the address of a tensor in shared memory, and record its swizzle."""
        copied = b.byte_gep(pointer, 0)
        self._seen_through[copied] = swizzles.swizzled(op, pointer)
        return copied

    def _swizzle_of(self, value: ir.Value, seen: tuple[ir.Value, ...] = ()) -> swizzles.Swizzled | None:
        """Return the swizzle of an address; None if it is not known, or differs between paths."""
        for _ in range(256):
            if value in self._seen_through:
                return self._seen_through[value]
            sources = [s for s in pointers.address_sources(value) if s not in seen]
            if not sources:
                return None
            if len(sources) > 1:
                if len(seen) > MOST_MERGES:
                    return None
                swizzles_ = {self._swizzle_of(source, (*seen, value)) for source in sources if source != value}
                return swizzles_.pop() if len(swizzles_) == 1 else None
            value = sources[0]
        return None

    def allocated_private(self, op: AnyOp, value: ir.Value, size: int) -> None:
        """Record a register array."""
        self._private[value] = size
        if MULTIPLIED in op.attributes:
            self._multiplied[value] = assigned_name(source_span(op.location)[0])
        if LOADED in op.attributes:
            self._loaded.add(value)

    def site(self, op: AnyOp, x: Expander, what: str, **more: Any) -> int:
        """Return the number of a site; the same for code that was traced several times at one place."""
        return self.site_in(op, x.function.name, what, **more)

    def site_in(self, op: AnyOp, kernel: str, what: str, **more: Any) -> int:
        """Return the number of a site in a kernel."""
        span, calls = source_span(op.location)
        site = SanitizedSite(what, span, calls, kernel, **more)
        number = self._site_numbers.get(site)
        if number is None:
            number = self._site_numbers[site] = len(self.sites)
            self.sites.append(site)
        return number

    def name_of(self, address: ir.Value) -> str:
        """Return the variable that an address in shared memory, or one that it is computed from, was assigned to."""
        for _ in range(16):
            if isinstance(address.owner, ir.Block):
                break
            op = address.owner.operation
            name = assigned_name(source_span(op.location)[0])
            if name or not len(op.operands):
                return name
            address = op.operands[0]
        return ""

    def name_at(self, span: Span | None) -> str:
        """Return the variable that the statement at a source line assigns, if it is one name."""
        return assigned_name(span)

    # -- calls -------------------------------------------------------------------------------------------

    def call(self, expansion: Expansion, b: Builder, name: str, *arguments: Any) -> ir.Value | None:
        """Call a function of the detector; numbers become constants, pointers addresses."""
        called = call_operation(expansion, b, name, *arguments)
        return called.results[0] if len(called.results) else None

    def _origin(self, x: Expander, value: ir.Value, first: bool = False, seen: tuple[ir.Value, ...] = ()) -> Origin:
        """Return the origin of an address: ("argument", number), ("shared", allocation), ("private", array) or
        ("unknown", None).

        If a loop or branch changes the address, all its origins must agree; with `first`, the initial one counts.
        """
        for _ in range(256):
            if value in self._allocations:
                return "shared", self._allocations[value]
            if value in self._private:
                return "private", value
            if value in seen:
                return "again", None
            if isinstance(value.owner, ir.Block) and value.owner == x.entry:
                number = ir.BlockArgument(value).arg_number
                info = self._kernel_numbers.get(x.function.name)
                if info is not None and number < len(self.kernels[info].arguments):
                    return "argument", number
                break
            sources = pointers.address_sources(value)
            if not sources:
                break
            if len(sources) > 1 and not first:
                if len(seen) > MOST_MERGES:
                    break
                origins = [self._origin(x, source, seen=(*seen, value)) for source in sources]
                distinct = {(o[0], id(o[1]) if o[0] == "shared" else o[1]): o for o in origins if o[0] != "again"}
                return (
                    next(iter(distinct.values())) if len(distinct) == 1 else ("unknown" if distinct else "again", None)
                )
            value = sources[0]
        return "unknown", None

    def use(self, engine: int) -> None:
        """Note that the program uses an engine."""
        self.engines = max(self.engines, engine + 1)

    def checked_address(
        self,
        x: Expander,
        op: AnyOp,
        b: Builder,
        address: ir.Value,
        type_: ir.Type | None,
        bytes_: int | ir.Value,
        write: bool,
        alignment: int = 1,
        atomic: bool = False,
        engine: int = 0,
        what: str = "",
        written: bool = True,
        value: ir.Value | None = None,
        scope: int = SYSTEM,
        noncoherent: bool = False,
    ) -> ir.Value:
        """Check an access through a pointer of type `type_`, and return the address to use.

        Without a type the address may be anywhere. An atomic access has a `scope`, an index of `SCOPES`; a
        `noncoherent` load may miss writes of the kernel. `value` is what a plain write writes, if that is known: threads that
        write the same value at the same place do not race.
        """
        if not x.function.is_kernel:
            return address
        memory = self._classify(x, address, type_)
        what = what or ("write" if write else "read")
        if memory.space == "tmem":
            return address
        if memory.origin == "private" or memory.space == "rmem":
            return self._private_access(x, op, b, address, memory, bytes_, write, what)
        if isinstance(bytes_, int):  # what a pointer is said to be aligned to beyond that, no access needs
            alignment = min(alignment, 1 << (bytes_ - 1).bit_length())
            whole = bytes_ | alignment
            self.granule = min(self.granule, whole & -whole)
        flags = WRITE * write | ATOMIC * atomic | engine << ENGINE_SHIFT | NO_INIT * (not written) | memory.space_flags
        flags |= (alignment.bit_length() - 1) << ALIGNMENT_SHIFT | (SYSTEM - scope) << SCOPE_SHIFT
        flags |= NONCOHERENT * noncoherent
        if self.plain and not write and is_only_printed(op):
            flags |= NO_INIT
        facts = self.facts[x.function.name]
        looks = facts.swizzled and flags & SHARED and memory.space != "dsmem"
        plain = engine < GENERIC and not atomic and written and not swizzles.is_uniform(value)
        through = self._swizzle_of(address) if looks and plain else None
        swizzle = {"swizzle": through.name} if through is not None else {}
        loop, calls = self._say_iteration(x, op, b) if not engine else (None, [])
        uniform = not self.plain and not engine and is_uniform(address, x.entry, x.function.indices["thread_idx"])
        site = self.site(op, x, what, **memory.site_fields, **swizzle, uniform=uniform, loop=loop)
        facts.ordered |= bool(flags & SHARED or engine or (atomic and not self.plain))
        if write and not flags & SHARED:
            if memory.low:
                facts.written.add(memory.low - 1)
            else:
                facts.writes_unknown = True
        if value is not None and "race" in self.kinds:
            place = x.at_entry(op.location).alloca(value.type)
            calls.append(b.op("llvm.store", (), (value, place)))
            calls.append(call_operation(x.module, b, "writes", address, place))
        name = "check_access_by_default" if self.plain else "check_access"
        checked_call = call_operation(x.module, b, name, address, bytes_, flags, site, memory.low, memory.high)
        checked = checked_call.results[0]
        if isinstance(bytes_, int) and not engine:
            argument = memory.low - 1 if not flags & SHARED else -1
            facts.checks.append(
                inline.AccessCheck(checked_call, tuple(calls), argument, bytes_, alignment, site, write, noncoherent)
            )
        if looks:
            swizzles.look(b, functools.partial(self.call, x.module, b), checked, bytes_, through, write, site)
        return b.value("llvm.inttoptr", ptr_type(), (checked,))

    def _say_iteration(self, x: Expander, op: AnyOp, b: Builder) -> tuple[Span | None, list[ir.Operation]]:
        """Let the detector know the iteration of the innermost loop around an operation.

        Returns the loop's place and the operation that does it; nothing outside loops, in default checks, on several devices.
        """
        # where devices wait for each other, a loop that spins must not count: it would seem to go on
        loop = None if self.plain or self.several else next(loops_around(op.operation), None)
        if loop is None:
            return None, []
        place = inline.state_field(x.module, b, "iteration")
        store = b.op("llvm.store", (), (self._iterations.number(x, b, loop), place))
        return source_span(loop.location)[0], [store]

    def _classify(self, x: Expander, address: ir.Value, type_: ir.Type | None) -> AccessedMemory:
        """Return the memory that an access through a pointer of a type refers to."""
        space = "generic"
        element = "bytes"
        bits = 8
        if type_ is not None:
            info = cute.info(type_)
            space = info.space
            element = str(info.element)
            bits = cute.element_bits(info.element)
        if space == "tmem":
            return AccessedMemory("unknown", None, space, element, bits)
        origin, source = self._origin(x, address)
        memory = AccessedMemory(origin, source, space, element, bits)
        if origin == "shared":
            start = -1 if source.end == _DYNAMIC_END else source.start
            return memory._replace(low=source.start, high=source.end, name=source.name, start=start)
        argument = self._argument(x, source) if origin == "argument" else None
        if argument is not None and type_ is None:
            memory = memory._replace(space=argument.space, element=argument.element, element_bits=argument.element_bits)
        if argument is not None and not memory.space_flags & SHARED and source < MAX_OBJECTS:
            memory = memory._replace(low=source + 1, name=argument.name)
        return memory

    def _private_access(
        self,
        x: Expander,
        op: AnyOp,
        b: Builder,
        address: ir.Value,
        memory: AccessedMemory,
        bytes_: int | ir.Value,
        write: bool,
        what: str,
    ) -> ir.Value:
        """Check an access to a register array, and return the address to use."""
        source = memory.source
        fields = {"element": memory.element, "element_bits": memory.element_bits}
        if source in self._multiplied and "race" in self.kinds:
            site = self.site(op, x, what, memory=self._multiplied[source], **fields)
            self.call(x.module, b, "register", address, source, bytes_, int(write), site)
        if source in self._loaded and not write and "race" in self.kinds and cute.Load.of(op.operation) is None:
            self.call(x.module, b, "tensor_used")
        if memory.origin != "private" or "memory" not in self.kinds:
            return address
        place = self._static_offset(address, self._private)
        if place is not None and isinstance(bytes_, int) and 0 <= place[1] <= self._private[source] - bytes_:
            return address
        site = self.site(op, x, what, memory="register array", **fields)
        checked = self.call(x.module, b, "private", address, source, self._private[source], bytes_, site)
        return b.value("llvm.inttoptr", ptr_type(), (checked,))

    def shared_place(self, x: Expander, op: AnyOp, address: ir.Value, what: str) -> tuple[int, int, int]:
        """Return the bounds of the allocation of an address in shared memory, and the site of an access to it."""
        origin, source = self._origin(x, address)
        low, high, name = (source.start, source.end, source.name) if origin == "shared" else (0, _DYNAMIC_END, "")
        start = -1 if high == _DYNAMIC_END else low
        self.facts[x.function.name].ordered = True
        return low, high, self.site(op, x, what, memory=name, start=start, element="bytes", element_bits=8)

    def bounds(self, x: Expander, op: cute.Bounds, b: Builder, type_: ir.Type) -> None:
        """Check the coordinates of the next access: lowest, highest and extent of each mode."""
        pointer = op.pointer
        numbers = op.numbers
        modes = len(numbers) // 3
        bad: ir.Value | None = None
        for low, high, size in zip(numbers[:modes], numbers[modes : 2 * modes], numbers[2 * modes :], strict=True):
            outside = b.compare("uge", high, size)  # a negative one is large
            if low != high:
                outside = b.binary("ori", outside, b.compare("slt", low, 0))
            bad = outside if bad is None else b.binary("ori", bad, outside)
        assert bad is not None
        info = cute.info(type_)
        origin, source = self._origin(x, pointer, first=True)
        argument = self._argument(x, source) if origin == "argument" else None
        name = argument.name if argument is not None else source.name if origin == "shared" else self.name_of(pointer)
        what = "write" if op.write else "read"
        space = argument.space if argument is not None else "smem" if origin == "shared" else info.space
        flags = 0 if space == "rmem" else SPACE_OF.get(space, GLOBAL)
        inside = b.if_(bad)
        loop, _ = self._say_iteration(x, op, inside)
        site = self.site(op, x, what, memory=name, loop=loop)
        memory = x.at_entry(op.location).alloca(int_type(64), 3 * modes)
        for k, number in enumerate(numbers):
            inside.store(number, inside.byte_gep(memory, 8 * k))
        self.call(x.module, inside, "outside", site, flags, modes, memory)

    def _argument(self, x: Expander, number: int) -> Argument | None:
        return self.kernels[self._kernel_numbers[x.function.name]].arguments[number]

    # -- launches ----------------------------------------------------------------------------------------

    def launch(
        self,
        x: Expander,
        b: Builder,
        op: cute.Launch,
        state: FunctionState,
        smem: ir.Value,
        arguments: Sequence[ir.Value],
        sizes: Sequence[ir.Value],
    ) -> None:
        """Before a launch, describe the kernel's arguments to the detector."""
        number = self._kernel_numbers[state.name]
        facts = self.facts[state.name]
        self.kernels[number].dynamic_start = static_smem(state)
        shift = self.granule.bit_length() - 1
        self.call(
            x.module,
            b,
            "launch",
            self.rules,
            int(self.plain),
            number,
            shift,
            self.engines,
            int(self.relaxes),
            smem,
            op.stream,
            int(op.use_pdl),
        )
        for index, (argument, value) in enumerate(zip(self.kernels[number].arguments, arguments, strict=True)):
            if argument is None or index >= MAX_OBJECTS:
                continue
            pointer, leaves = _parts(b, value, argument)
            size = extent(b, argument.layout, argument.element_bits, leaves)
            self.call(x.module, b, "object", index, pointer, size, int(index in facts.written))
            for k, leaf in enumerate(leaves[:MAX_LEAVES]):
                self.call(x.module, b, "leaf", index, k, leaf)
        if facts.lone:
            self.call(x.module, b, "lone_sizes", *sizes[:6])
        self.call(x.module, b, "prepare", int(facts.lone), int(facts.writes_unknown or self.together))

    def launched(self, x: Expander, b: Builder) -> None:
        """After a launch."""
        self.call(x.module, b, "launched", int(self.together))

    def announce(
        self,
        expansion: Expansion,
        b: Builder,
        types: Sequence[ir.Type],
        arguments: Sequence[ir.Value],
        layouts: Sequence[str | None],
    ) -> None:
        """Describe the memory of arrays to the detector at the start of a call from Python.

        An argument with a layout is an address; the layout's dynamic leaves are the arguments after it. The prefix
        `const ` marks arrays that may not be written.
        """
        self.call(expansion, b, "begin")
        for number, layout in enumerate(layouts):
            if layout is None:
                continue
            readonly = int(layout.startswith("const "))
            layout = layout.removeprefix("const ")
            dynamic = len(cute.leaf_widths(layout))
            leaves = [_resized(b, leaf, 64) for leaf in arguments[number + 1 : number + 1 + dynamic]]
            bits = cute.element_bits(cute.info(types[number]).element)
            self.call(expansion, b, "extent", arguments[number], extent(b, layout, bits, leaves), readonly)

    def schedules(self, x: Expander, b: Builder, state: FunctionState) -> Builder:
        """Open a loop around a launch over the schedules that it runs under, if there may be several, and return its
        body."""
        once = {
            "launches of several devices wait for each other": self.several,
            "launches may overlap": self.together,
            "its threads never meet": self.facts[state.name].lone,
            "its kernel prints": prints(x.module, state.name),
            "neither race nor sync is asked for": not {"race", "sync"} & set(self.kinds),
        }
        reason = next((why for why, holds in once.items() if holds), "")
        if reason:
            self.once.append(reason)
            return b
        each, number = b.for_(b.i32(0), b.i32(MOST_SCHEDULES), b.i32(1))
        runs = self.call(x.module, each, "schedule", x.function.context, number)
        assert runs is not None
        self.call(x.module, b, "scheduled")
        return each.if_(each.compare("ne", runs, 0))


MULTIPLIED = "kiln.multiplied"
"""An attribute of register arrays that WGMMAs use."""


LOADED = "kiln.loaded"
"""An attribute of register arrays that tensor memory is loaded to, and of loads whose uses the detector is told of."""
_REGISTER_MOVES = {
    "vector.bitcast",
    "vector.shuffle",
    "vector.extract",
    "vector.extract_strided_slice",
    "arith.bitcast",
}
"""Operations that only rename registers: they do not wait for a load of their operand."""


def _launches_together(module: ir.Module) -> bool:
    """Return whether launches of a module may overlap: on several streams, or by programmatic launch."""
    launches = cute.Launch.all_in(module.operation)
    streams = {(constant_values(op.stream) or [op.stream])[0] for op in launches}
    return any(op.use_pdl for op in launches) or len(streams) > 1


def call_operation(expansion: Any, b: Builder, name: str, *arguments: Any) -> ir.Operation:
    """Return the call of a function of the detector."""
    symbol, inputs, result = detector.functions()[name]
    values: list[ir.Value] = []
    for argument, width in zip(arguments, inputs, strict=True):
        if isinstance(argument, int):
            argument = b.const(int_type(width), argument)
        elif argument.type == ptr_type():
            argument = b.value("llvm.ptrtoint", int_type(64), (argument,))
        values.append(_resized(b, argument, width))
    results = [int_type(result)] if result else []
    expansion.declare(symbol, [int_type(w) for w in inputs], results)
    return b.call(symbol, results, values)


def _resized(b: Builder, value: ir.Value, width: int) -> ir.Value:
    if value.type == int_type(width):
        return value
    wider = ir.IntegerType(value.type).width < width
    return b.value("arith.extsi" if wider else "arith.trunci", int_type(width), (value,))


def _parts(b: Builder, value: ir.Value, argument: Argument) -> tuple[ir.Value, list[ir.Value]]:
    """Return the pointer and the dynamic leaves (i64) of an argument."""
    widths = cute.leaf_widths(argument.layout) if argument.layout else ()
    if not widths:
        return value, []
    leaves = [b.extract(value, int_type(w), n + 1) for n, w in enumerate(widths)]
    return b.extract(value, ptr_type(), 0), [_resized(b, leaf, 64) for leaf in leaves]


def extent(b: Builder, layout: str | None, bits: int, leaves: Sequence[ir.Value]) -> ir.Value:
    """Return the bytes of a tensor, from its first element to the end of its last (i64); 0 if not known, `EMPTY` of none."""
    parsed = layout_leaves(layout)
    if parsed is None:
        return b.i64(0)
    dynamic = iter(leaves)
    shape, stride = ([next(dynamic) if leaf[0] == "?" else b.i64(int(leaf)) for leaf in part] for part in parsed)
    last = b.i64(0)
    fewest = b.i64(1)
    for s, d in zip(shape, stride, strict=True):
        fewest = b.binary("minsi", fewest, s)
        step = b.binary("muli", b.binary("subi", s, 1), d)
        last = b.binary("addi", last, b.binary("maxsi", step, 0))
    total = b.binary("muli", b.binary("addi", last, 1), bits)
    return b.select(b.compare("sle", fewest, 0), b.i64(-1), b.binary("divui", b.binary("addi", total, 7), 8))
