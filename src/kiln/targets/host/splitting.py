"""Splitting of large functions: LLVM's time grows with the square of the size of a function, or of a block.

`split` works on an `llvm.func`. The blocks of a large one are distributed in order over parts of a bounded size; each
part becomes a function, and the function itself a loop that calls one part after the other. A part returns the number
of the *entry* to continue with, a block that another part branches to, or 0 at the end; the number has the part in its
upper half. Parts share a frame on the stack of the loop: values that one defines and another uses, arguments of entry
blocks, and the result. The parts take the function's arguments, rematerialize constants, and find the function's own
memory through the frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...mlir import context, find, ir, terminator
from ..lowering.builder import int_attr, int_type, ptr_type, symbol
from .frame_builder import FrameBuilder

LARGE = 10_000
"""Functions with more operations are split.

Below, what grows with the square is a small share of the time to compile, and few kernels are so large (attention has
up to 18,000): values that cross from one part to another lie in memory, and LLVM does not see through the border.
"""

REMATERIALIZED = frozenset(f"llvm.mlir.{name}" for name in ("constant", "addressof", "zero", "undef", "poison"))
"""Operations that are made again where they are used."""
_PART_BITS = 16
"""Bits of an entry's number below the part."""

Resume = tuple[ir.Block, ir.Operation]
"""A block that a function may be resumed at, and the constant that says so."""


def split(func: ir.Operation, most: int | None = None, resumes: Sequence[Resume] = ()) -> int:
    """Split a function that has more than `most` operations (by default `LARGE`), and return the number of parts.

    The first block of the function may continue with one of the blocks of `resumes`, as a number says; 0 is the start.
    Their constants are changed.
    """
    most = LARGE if most is None else most
    if size_of(func) <= most or not _has_plain_memory(func):
        return 1
    return _Splitter(func, most).run(resumes)


def size_of(func: ir.Operation) -> int:
    """Return the number of operations of an `llvm.func`."""
    return sum(len(block.operations) for block in func.regions[0].blocks)


def _has_plain_memory(func: ir.Operation) -> bool:
    """Return whether memory on the stack is taken in the first block only, and is of a known size."""
    first = func.regions[0].blocks[0]
    for op in find(func, ("llvm.alloca",)):
        count = op.operands[0].owner
        if op.block != first or isinstance(count, ir.Block) or count.operation.name not in REMATERIALIZED:
            return False
    return True


class _Splitter(FrameBuilder):
    def __init__(self, func: ir.Operation, most: int) -> None:
        super().__init__(alignment=16)
        self.func = func
        self.most = most
        self.functions: list[ir.Operation] = []
        self.region = func.regions[0]
        self.driver = self.region.blocks[0]
        self.arguments = list(self.driver.arguments)

    def run(self, resumes: Sequence[Resume]) -> int:
        # first: to find operations drops blocks that no branch leads to
        constants = find(self.func, ("llvm.getelementptr", *REMATERIALIZED))
        state = self._take_state() if resumes else self._take_entry()
        blocks = self._cut_blocks(list(self.region.blocks)[1:])
        parts = self._deal(blocks)
        self.part_of = {block: number for number, part in enumerate(parts) for block in part}
        self.starts = [self._new_part(number) for number in range(len(parts))]
        self.part_of |= {start: number for number, start in enumerate(self.starts)}
        self.entries: dict[ir.Block, tuple[int, list[int]]] = {}
        """Blocks that others than their part branch to: their numbers, and where their arguments lie."""
        self.entered = [0] * len(parts)
        first, _ = self._enter(blocks[0])
        for block, constant in resumes:
            constant.attributes["value"] = int_attr(int_type(32), self._enter(block)[0])
        self._replace_constants(constants)
        self._replace_arguments()
        self._leave(blocks)
        own = self._spill(blocks)
        for number, part in enumerate(parts):
            for block in part:
                block.append_to(self.functions[number].regions[0])
        self._land()
        self._drive(own, first, state)
        return len(parts)

    # -- blocks ------------------------------------------------------------------------------------------

    def _take_entry(self) -> None:
        """Keep only arguments and stack memory in the first block."""
        rest = ir.Block.create_after(self.driver)
        for op in [op.operation for op in self.driver.operations]:
            if op.name != "llvm.alloca":
                rest.append(op)
        for op in [op.operation for op in self.driver.operations]:
            count = op.operands[0].owner.operation
            op.operands[0] = count.clone(ir.InsertionPoint(op)).results[0]

    def _take_state(self) -> ir.Value:
        """Return the number of the block that the first one branches to, and remove the branch."""
        end = terminator(self.driver)
        state = end.operands[0]
        end.erase()
        return state

    def _cut_blocks(self, blocks: list[ir.Block]) -> list[ir.Block]:
        """Cut blocks that have more operations than a part may have."""
        cut: list[ir.Block] = []
        for block in blocks:
            cut.append(block)
            if len(block.operations) <= self.most:
                continue
            held = [op.operation for op in block.operations]
            half = self.most // 2
            pieces: list[ir.Block] = []
            for start in reversed(range(half, len(held), half)):
                pieces.insert(0, ir.Block.create_after(block))
                for op in held[start : start + half]:
                    pieces[0].append(op)
            for before, after in itertools.pairwise([block, *pieces]):
                self.op("llvm.br", ir.InsertionPoint(before), (), (), None, [after])
            cut += pieces
        return cut

    def _deal(self, blocks: list[ir.Block]) -> list[list[ir.Block]]:
        """Return parts of the blocks, in order. They end outside as many loops as possible, and as late as possible."""
        number = {block: position for position, block in enumerate(blocks)}
        changes = [0] * (len(blocks) + 1)
        for position, block in enumerate(blocks):
            for target in terminator(block).successors:
                if number[target] <= position:  # a loop: cuts behind its first block, up to its last, are inside it
                    changes[number[target] + 1] += 1
                    changes[position + 1] -= 1
        depths: list[int] = []
        for change in changes:
            depths.append((depths[-1] if depths else 0) + change)
        sizes = [len(block.operations) for block in blocks]
        parts: list[list[ir.Block]] = []
        start = 0
        while start < len(blocks):
            end = start
            held = 0
            cuts = []
            while end < len(blocks) and (end == start or held + sizes[end] <= self.most):
                held += sizes[end]
                end += 1
                if held >= self.most // 4 or end == len(blocks):
                    cuts.append(end)
            if end < len(blocks):
                end = min(reversed(cuts or [end]), key=depths.__getitem__)
            parts.append(blocks[start:end])
            start = end
        return parts

    # -- parts -------------------------------------------------------------------------------------------

    def _new_part(self, number: int) -> ir.Block:
        """Return the first block of a new part, whose arguments are those of the function, the frame, and an entry."""
        types = [*(argument.type for argument in self.arguments), ptr_type(), int_type(32)]
        signature = f"!llvm.func<i32 ({', '.join(map(str, types))})>"
        attributes = {
            "sym_name": ir.StringAttr.get(f"{symbol(self.func)}.part{number}", context()),
            "function_type": ir.TypeAttr.get(ir.Type.parse(signature, context())),
            "linkage": ir.Attribute.parse("#llvm.linkage<internal>", context()),
            "CConv": ir.Attribute.parse("#llvm.cconv<ccc>", context()),
            "no_inline": ir.UnitAttr.get(context()),
        }
        point = ir.InsertionPoint(self.func)
        part_function = ir.Operation.create(
            "llvm.func", attributes=attributes, regions=1, loc=self.func.location, ip=point
        )
        self.functions.append(part_function)
        return part_function.regions[0].blocks.append(*types, arg_locs=[self.unknown] * len(types))

    def _frame(self, part: int) -> ir.Value:
        return self.starts[part].arguments[len(self.arguments)]

    def _enter(self, block: ir.Block) -> tuple[int, list[int]]:
        """Return the number of an entry, and where its arguments lie."""
        if block not in self.entries:
            part = self.part_of[block]
            self.entered[part] += 1
            places = [self.place_for(value.type) for value in block.arguments]
            self.entries[block] = (part << _PART_BITS) + self.entered[part], places
        return self.entries[block]

    def _replace_constants(self, constants: list[ir.Operation]) -> None:
        """Make the constants of a part, and addresses next to arguments, in its first block."""
        for op in constants:
            if op.name == "llvm.getelementptr" and not self._is_next_to_arguments(op):
                continue
            clones: dict[int, ir.Value] = {}
            for use in list(op.results[0].uses):
                user = use.owner.operation
                if user.block == self.driver:
                    continue
                part = self.part_of[user.block]
                if part not in clones:
                    clones[part] = op.clone(ir.InsertionPoint(self.starts[part])).results[0]
                user.operands[use.operand_number] = clones[part]
            if next(iter(op.results[0].uses), None) is None:
                op.erase()

    def _is_next_to_arguments(self, op: ir.Operation) -> bool:
        return op.block == self.driver and all(operand in self.arguments for operand in op.operands)

    def _replace_arguments(self) -> None:
        for number, argument in enumerate(self.arguments):
            for use in list(argument.uses):
                user = use.owner.operation
                if user.block != self.driver:
                    user.operands[use.operand_number] = self.starts[self.part_of[user.block]].arguments[number]

    def _leave(self, blocks: list[ir.Block]) -> None:
        """Return from a part where its function returned, or went to a block of another part."""
        self.result = None
        left: dict[tuple[int, ir.Block], ir.Block] = {}
        for block in blocks:
            end = terminator(block)
            part = self.part_of[block]
            if end.name == "llvm.return":
                at = ir.InsertionPoint(end)
                if len(end.operands):
                    self.result = self.result or (end.operands[0].type, self.place_for(end.operands[0].type))
                    self.store(at, end.operands[0], self._frame(part), self.result[1])
                self.op("llvm.return", at, (), (self.constant(at, 0),))
                end.erase()
            elif any(self.part_of[target] != part for target in end.successors):
                targets = [self._way_to(target, part, left) for target in end.successors]
                attributes = {name: end.attributes[name] for name in end.attributes}
                self.op(end.name, ir.InsertionPoint(end), (), list(end.operands), attributes, targets)
                end.erase()
        for (part, _), block in left.items():
            self.part_of[block] = part
            blocks.append(block)

    def _way_to(self, target: ir.Block, part: int, left: dict[tuple[int, ir.Block], ir.Block]) -> ir.Block:
        """Return the block to branch to: the target itself, or one that returns its number from a part."""
        if self.part_of[target] == part:
            return target
        if (part, target) not in left:
            number, places = self._enter(target)
            types = [value.type for value in target.arguments]
            block_ = self.functions[part].regions[0].blocks.append(*types, arg_locs=[self.unknown] * len(types))
            at = ir.InsertionPoint(block_)
            for value, place in zip(block_.arguments, places, strict=True):
                self.store(at, value, self._frame(part), place)
            self.op("llvm.return", at, (), (self.constant(at, number),))
            left[part, target] = block_
        return left[part, target]

    def _spill(self, blocks: list[ir.Block]) -> list[tuple[ir.Value, int]]:
        """Pass values between parts in the frame; return those of the function itself, with their places."""
        for block in blocks:
            part = self.part_of[block]
            for value in [*block.arguments, *(result for op in block.operations for result in op.operation.results)]:
                place = self._pass_on(value, part)
                if place is not None:
                    owner = value.owner
                    inner = isinstance(owner, ir.Block)
                    at = ir.InsertionPoint.at_block_begin(block) if inner else ir.InsertionPoint.after(owner.operation)
                    self.store(at, value, self._frame(part), place)
        own = [result for op in self.driver.operations for result in op.operation.results]
        return [(value, place) for value in own if (place := self._pass_on(value, -1)) is not None]

    def _pass_on(self, value: ir.Value, home: int) -> int | None:
        """Let parts other than its own load a value from the frame, and return its place; None if none uses it."""
        users: dict[ir.Block, list[tuple[ir.Operation, int]]] = {}
        for use in value.uses:
            user = use.owner.operation
            if user.block != self.driver and self.part_of[user.block] != home:
                users.setdefault(user.block, []).append((user, use.operand_number))
        if not users:
            return None
        place = self.place_for(value.type)
        for block, uses in users.items():
            at = ir.InsertionPoint.at_block_begin(block)
            loaded = self.load(at, value.type, self._frame(self.part_of[block]), place)
            for user, index in uses:
                user.operands[index] = loaded
        return place

    def _land(self) -> None:
        """Dispatch each part to the entry that it is called for."""
        targets: list[list[tuple[int, ir.Block]]] = [[] for _ in self.starts]
        for block, (number, places) in self.entries.items():
            part = self.part_of[block]
            if places:
                landing = self.functions[part].regions[0].blocks.append()
                at = ir.InsertionPoint(landing)
                values = [
                    self.load(at, value.type, self._frame(part), place)
                    for value, place in zip(block.arguments, places, strict=True)
                ]
                self.op("llvm.br", at, (), values, None, [block])
                block = landing
            targets[part].append((number, block))
        for start, ways in zip(self.starts, targets, strict=True):
            if ways:
                self.switch(ir.InsertionPoint(start), start.arguments[len(start.arguments) - 1], ways)
            else:  # nobody comes here
                self.op("llvm.unreachable", ir.InsertionPoint(start))

    def _drive(self, own: list[tuple[ir.Value, int]], first: int, state: ir.Value | None) -> None:
        """Call parts until one returns 0. `own`: values of the function itself, and where they lie in the frame."""
        i32 = int_type(32)
        ptr = ptr_type()
        bit = int_type(1)
        at = ir.InsertionPoint(self.driver)
        bytes_ = ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{max(self.size, 1)} x i8>", context()))
        alignment = ir.IntegerAttr.get(int_type(64), self.alignment)
        frame = self.op(
            "llvm.alloca", at, (ptr,), (self.constant(at, 1),), {"elem_type": bytes_, "alignment": alignment}
        ).result
        for value, place in own:
            self.store(at, value, frame, place)
        choose, done = (self.region.blocks.append(i32, arg_locs=[self.unknown]) for _ in range(2))
        exit_ = self.region.blocks.append()
        number = self.constant(at, first)
        if state is not None:
            is_start = self.op("llvm.icmp", at, (bit,), (state, self.constant(at, 0)), _equal()).result
            number = self.op("llvm.select", at, (i32,), (is_start, number, state)).result
        self.op("llvm.br", at, (), (number,), None, [choose])
        calls: dict[int, ir.Block] = {}
        for part, function in enumerate(self.functions):
            if not self.entered[part]:
                continue
            calls[part] = self.region.blocks.append()
            at = ir.InsertionPoint(calls[part])
            operands = [*self.arguments, frame, choose.arguments[0]]
            attributes = {
                "callee": ir.FlatSymbolRefAttr.get(symbol(function), context()),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0], context()),
                "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
            }
            called = self.op("llvm.call", at, (i32,), operands, attributes).result
            self.op("llvm.br", at, (), (called,), None, [done])
        at = ir.InsertionPoint(choose)
        part = self.op("llvm.lshr", at, (i32,), (choose.arguments[0], self.constant(at, _PART_BITS))).result
        self.switch(at, part, list(calls.items()))
        at = ir.InsertionPoint(done)
        is_end = self.op("llvm.icmp", at, (bit,), (done.arguments[0], self.constant(at, 0)), _equal()).result
        segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 1], context())}
        self.op("llvm.cond_br", at, (), (is_end, done.arguments[0]), segments, [exit_, choose])
        at = ir.InsertionPoint(exit_)
        values = () if self.result is None else (self.load(at, self.result[0], frame, self.result[1]),)
        self.op("llvm.return", at, (), values)


def _equal() -> dict[str, ir.Attribute]:
    return {"predicate": int_attr(int_type(64), 0)}


# --- long blocks of structured control flow --------------------------------------------------------------------------

_STRUCTURED = ("scf.if", "scf.for", "scf.while", "scf.index_switch")
_MOST_STRUCTURED = 64
"""Blocks with more branches and loops are grouped."""


def group_structured(module: ir.Module) -> None:
    """Group the branches and loops of blocks that have very many of them into regions.

    MLIR's conversion moves all that follows in a block behind each of them, and remembers every move until it is done.
    """
    by_block: dict[ir.Block, list[ir.Operation]] = {}
    for op in find(module.operation, _STRUCTURED):
        by_block.setdefault(op.block, []).append(op)
    for block, structured in by_block.items():
        if len(structured) > _MOST_STRUCTURED:
            _group(block, set(structured))


def _group(block: ir.Block, structured: set[ir.Operation]) -> None:
    held = [op.operation for op in block.operations]
    memory = [number for number, op in enumerate(held) if op.name == "llvm.alloca"]
    groups: list[list[ir.Operation]] = [[]]
    count = 0
    for op in held[memory[-1] + 1 if memory else 0 : -1]:
        count += op in structured
        groups[-1].append(op)
        if count == _MOST_STRUCTURED:
            groups.append([])
            count = 0
    number_of = {op: number for number, group in enumerate(groups) for op in group}
    for number, group in enumerate(groups[:-1]):
        results: list[ir.Value] = []
        users: list[list[tuple[ir.Operation, int]]] = []
        for result in (result for op in group for result in op.results):
            outside = [
                (use.owner.operation, use.operand_number)
                for use in result.uses
                if number_of.get(_within(block, use.owner.operation)) != number
            ]
            if outside:
                results.append(result)
                users.append(outside)
        location = group[0].location
        point = ir.InsertionPoint(group[0])
        types = [result.type for result in results]
        region_op = ir.Operation.create("scf.execute_region", types, regions=1, loc=location, ip=point)
        inner = region_op.regions[0].blocks.append()
        for op in group:
            inner.append(op)
        ir.Operation.create("scf.yield", (), results, loc=location, ip=ir.InsertionPoint(inner))
        for result, outside in zip(region_op.results, users, strict=True):
            for user, index in outside:
                user.operands[index] = result
        number_of[region_op] = -1


def _within(block: ir.Block, op: ir.Operation) -> ir.Operation:
    """Return the operation of a block that an operation is, or is in."""
    while op.block != block:
        op = op.parent.operation
    return op
