"""Host code of a launch: `cute_nvgpu.driver_launch` as a call of the driver's `cuLaunchKernelEx`.

An executable has one table of addresses, which Python (`runtime.py`) or exported code (`loader.py`) fills: the driver's
function, two functions for all but the fast path, the ring of recent launches and the executable's number there, and
the handle of each kernel, zero until it is loaded.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects.nvgpu.launch import DriverLaunch
from ...dialects.nvgpu.tma import TensorMap
from ...mlir import context, ir
from ..host import call_context as shared
from ..lowering.builder import Builder, constant_value, int_type, parsed_type, ptr_type
from ..lowering.expansion import Handlers
from ..lowering.memory import carrier_type, to_carrier
from . import recent_launches

if TYPE_CHECKING:
    from ..host.expand import Expander

HANDLERS = Handlers()

TABLE = "kiln_cuda_table"
LAUNCH, SLOW, AFTER, RECENT, OWNER, CLOCK, HANDLES = range(7)
"""Indices into the table."""

# CUlaunchConfig: offsets of its fields, and its size
_GRID = 0
_BLOCK = 12
_SMEM = 24
_STREAM = 32
_ATTRIBUTES = 40
_COUNT = 48
_CONFIG_BYTES = 56
# CUlaunchAttribute: an id, and a value at offset 8
ATTRIBUTE_BYTES = 72
VALUE = 8
_COOPERATIVE = 2
CLUSTER = 4
_CLUSTER_SCHEDULING = 5
_PROGRAMMATIC_SERIALIZATION = 6
_PROGRAMMATIC_EVENT = 7
_PREFERRED_CLUSTER = 11
_LAUNCH_COMPLETION_EVENT = 12
_CARVEOUT = 14
_SMEM_MODE = 18
_OVERSIZED = 3
"""The mode of shared memory that allows more of it, which leaves less to the L1 cache; 0 is the kernel's own."""
_MOST_ATTRIBUTES = 9
_MONOTONIC = time.CLOCK_MONOTONIC


def make_table(module: ir.Module, kernels: int) -> None:
    """Add the table of an executable to its host module."""
    ir.Operation.create(
        "llvm.mlir.global",
        attributes={
            "sym_name": ir.StringAttr.get(TABLE, context()),
            "global_type": ir.TypeAttr.get(parsed_type(f"!llvm.array<{HANDLES + kernels} x i64>")),
            "linkage": ir.Attribute.parse("#llvm.linkage<external>", context()),
            "value": ir.Attribute.parse("#llvm.zero", context()),
            "addr_space": ir.IntegerAttr.get(int_type(32), 0),
            "visibility_": ir.IntegerAttr.get(int_type(64), 0),
        },
        regions=1,
        loc=ir.Location.unknown(context()),
        ip=ir.InsertionPoint.at_block_begin(module.body),
    )


def _entry(b: Builder, number: int) -> ir.Value:
    return b.load(ptr_type(), b.byte_gep(b.address_of(TABLE), 8 * number))


@HANDLERS.expands(DriverLaunch)
def _driver_launch(x: Expander, op: DriverLaunch, outside: Builder) -> None:
    arguments, events = op.kernel_arguments()
    types: Any = op.arguments.type  # those of the dialect
    are_maps = [isinstance(types.get_type(number), TensorMap) for number in range(len(arguments))]
    index = op.index
    site = x.module.site(op, "launch", op.needs, op.name)
    i32 = int_type(32)
    i64 = int_type(64)
    entry = x.at_entry(op.location)
    config = entry.alloca(i64, _CONFIG_BYTES // 8)
    attributes = entry.alloca(i64, _MOST_ATTRIBUTES * ATTRIBUTE_BYTES // 8)
    pointers = entry.alloca(ptr_type(), max(len(arguments), 1))
    places = [  # a map is a pointer to what the kernel gets
        value if is_map else entry.alloca(carrier_type(value.type), 1, 16)
        for value, is_map in zip(arguments, are_maps, strict=True)
    ]

    # a call that has failed launches nothing more
    status = outside.load(i32, outside.byte_gep(x.function.context, shared.offset("status")))
    failed = outside.binary("andi", status, shared.FAULT)
    sound = outside.if_(outside.compare("eq", failed, 0))
    # what the driver could not be operands: it takes 32 bits
    numbers = [*op.grid, *op.block, *op.cluster, op.smem]
    narrow = [sound.value("arith.trunci", i32, (number,)) for number in numbers]
    b = sound
    dynamic = [pair for pair in zip(numbers, narrow, strict=True) if constant_value(pair[0]) is None]
    if dynamic:
        changed = [sound.compare("ne", sound.value("arith.extsi", i64, (part,)), number) for number, part in dynamic]
        lost = functools.reduce(functools.partial(sound.binary, "ori"), changed)
        too_large, b = sound.if_else(lost)
        x.fault(too_large, site, [*numbers, too_large.i64(0)])
    *sizes, smem = narrow

    for number, (value, place) in enumerate(zip(arguments, places, strict=True)):
        if place != value:
            b.store(to_carrier(b, value), place)
        b.store(place, b.gep(pointers, ptr_type(), number))
    for number, size in enumerate(sizes[:3]):
        b.store(size, b.byte_gep(config, _GRID + 4 * number))
    for number, size in enumerate(sizes[3:6]):
        b.store(size, b.byte_gep(config, _BLOCK + 4 * number))
    smem = _dynamic_smem(b, op, smem)
    b.store(smem, b.byte_gep(config, _SMEM))
    b.store(op.stream, b.byte_gep(config, _STREAM))
    b.store(attributes, b.byte_gep(config, _ATTRIBUTES))
    b.store(_launch_attributes(b, op, attributes, sizes, smem, events), b.byte_gep(config, _COUNT))

    handle = _entry(b, HANDLES + index)
    missing = b.compare("eq", b.value("llvm.ptrtoint", i64, (handle,)), 0)

    def launch(c: Builder) -> ir.Value:
        return c.call_pointer(_entry(c, LAUNCH), [config, handle, pointers, c.null()], i32)

    launched = b.choose(missing, lambda c: c.i32(-1), launch, i32)

    def slow(c: Builder) -> ir.Value:
        operands = [c.i32(index), c.i32(site), launched, config, pointers, _entry(c, OWNER)]
        return c.call_pointer(_entry(c, SLOW), operands, i32)

    result = b.choose(b.compare("ne", launched, 0), slow, lambda _: launched, i32)
    refusal = x.module.site(op, "refused", "", op.name)
    done, refused = b.if_else(b.compare("eq", result, 0))
    x.fault(refused, refusal, [refused.value("arith.extsi", i64, (result,))])
    _note(x, done, index, site)
    if op.reports:
        operands = [done.i32(index), done.i32(site), op.stream, _entry(done, OWNER)]
        result = done.call_pointer(_entry(done, AFTER), operands, i32)
        refused = done.if_(done.compare("ne", result, 0))
        x.fault(refused, refusal, [refused.value("arith.extsi", i64, (result,))])


def _dynamic_smem(b: Builder, op: DriverLaunch, requested: ir.Value) -> ir.Value:
    """Return the bytes of dynamic shared memory of a launch (`KernelInfo.dynamic_smem`), saturated."""
    if op.extra_smem is not None:
        return b.binary("addi", requested, op.extra_smem)
    if op.held_smem is None:
        return requested
    held = b.i32(op.held_smem)
    beyond = b.binary("subi", b.binary("maxui", requested, held), held)
    return b.binary("maxui", beyond, op.least_smem)


def _note(x: Expander, b: Builder, index: int, site: int) -> None:
    """Record a launch in the ring of `recent_launches.py`; threads may overwrite each other's entries."""
    i64 = int_type(64)
    ring = _entry(b, RECENT)
    number = b.binary("addi", b.load(i64, ring), 1)
    b.store(number, ring)
    place = b.binary("addi", b.binary("andi", number, recent_launches.ENTRIES - 1), 1)
    entry = b.gep(ring, i64, b.binary("muli", place, recent_launches.WORDS))
    owner = b.value("llvm.ptrtoint", i64, (_entry(b, OWNER),))
    for word, value in enumerate((number, owner, b.i64(index << 32 | site), _time(x, b))):
        b.store(value, b.gep(entry, i64, word))


def _time(x: Expander, b: Builder) -> ir.Value:
    """Return the time as `recent_launches.py` reads it."""
    if recent_launches.HAS_COUNTER:
        return recent_launches.counter(b)
    i64 = int_type(64)
    now = x.at_entry(b.location).alloca(i64, 2)  # a timespec: seconds, nanoseconds
    b.call_pointer(_entry(b, CLOCK), [b.i32(_MONOTONIC), now], int_type(32))
    seconds = b.binary("muli", b.load(i64, now), 1_000_000_000)
    return b.binary("addi", seconds, b.load(i64, b.gep(now, i64, 1)))


def _launch_attributes(
    b: Builder,
    op: DriverLaunch,
    memory: ir.Value,
    sizes: Sequence[ir.Value],
    smem: ir.Value,
    events: Mapping[str, Sequence[ir.Value]],
) -> ir.Value:
    """Write the launch's attributes, and return their number."""
    count = 0

    def add(kind: int, values: Sequence[ir.Value], first_bytes: int = 4) -> None:
        nonlocal count
        start = ATTRIBUTE_BYTES * count
        b.store(b.i32(kind), b.byte_gep(memory, start))
        for number, value in enumerate(values):
            place = first_bytes + 4 * (number - 1) if number else 0
            b.store(value, b.byte_gep(memory, start + VALUE + place))
        count += 1

    if op.cooperative:
        add(_COOPERATIVE, [b.i32(1)])
    if op.use_pdl:
        add(_PROGRAMMATIC_SERIALIZATION, [b.i32(1)])
    if "launch_completion" in events:
        add(_LAUNCH_COMPLETION_EVENT, events["launch_completion"][:2], 8)
    if "programmatic" in events:
        add(_PROGRAMMATIC_EVENT, events["programmatic"], 8)
    share = _carveout(b, op, smem)
    if share is not None:
        add(_CARVEOUT, [share])
    if op.smem_optin is not None:
        is_oversized = b.compare("ugt", smem, op.smem_optin)
        add(_SMEM_MODE, [b.select(is_oversized, b.i32(_OVERSIZED), b.i32(0))])
    if op.cluster_scheduling is not None:
        add(_CLUSTER_SCHEDULING, [b.i32(op.cluster_scheduling)])
    if op.preferred_cluster:
        add(_PREFERRED_CLUSTER, [b.i32(size) for size in op.preferred_cluster])
        add(CLUSTER, sizes[6:9])
        return b.i32(count)
    if all(constant_value(size) == 1 for size in op.cluster):
        return b.i32(count)
    add(CLUSTER, sizes[6:9])
    volume = b.binary("muli", sizes[6], b.binary("muli", sizes[7], sizes[8]))
    # an architecture without clusters takes no such attribute, not even one of size 1
    return b.select(b.compare("eq", volume, 1), b.i32(count - 1), b.i32(count))


def _carveout(b: Builder, op: DriverLaunch, smem: ir.Value) -> ir.Value | None:
    """Return the percentage of an SM's memory to use as shared memory: the launch's, or what its `min_blocks` need."""
    if op.carveout is not None:
        return b.i32(op.carveout)
    blocks = op.min_blocks or 0
    if blocks < 2:
        return None
    used = b.binary("addi", smem, op.static_smem)
    percent = b.binary("ceildivui", b.binary("muli", used, 100 * blocks), op.smem_per_sm)
    return b.binary("minui", percent, 100)
