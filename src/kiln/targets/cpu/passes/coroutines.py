"""Resumable functions: a kernel that waits becomes a state machine over a frame in memory.

`make_resumable` works on an `llvm.func` that returns an i32 0, and whose suspend points are calls of `SUSPEND`. It

1. splits blocks after each suspend point: the first half stores where to go on and returns 1;
2. enters through a switch on that number;
3. gives every value that is needed on the other side of a suspend point a slot in the frame: stored where it is
   defined, loaded in each block that uses it. Function arguments are passed again at every call, constants are made
   again, and `alloca`s lie in the frame for good.

The frame starts with a header (`HEADER`); its size is known when the pass is done. A fresh frame is a zeroed header.
"""

from __future__ import annotations

import dataclasses

from ....base_dsl.target import size_and_alignment
from ....mlir import find, ir, terminator
from ...host.exits import calls, return_at
from ...host.frame_builder import FrameBuilder
from ...host.splitting import REMATERIALIZED, Resume
from ...lowering.builder import int_attr, int_type

SUSPEND = "kiln_suspend"
"""The function whose calls are suspend points."""

LEAVE = "kiln_leave"
"""The function that is called where a thread is abandoned: it looks suspended and is never resumed."""

RESUME_OFFSET = 0
"""Byte offset in the frame of the i32 that says where to resume; 0 is the start."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """The frame of a thread, which lasts from one resumption to the next."""

    size: int
    """Bytes, a multiple of `alignment`."""
    alignment: int
    spilled: int
    """Number of values that live across a suspend point."""
    suspends: int
    resumes: tuple[Resume, ...]
    """The blocks that it is resumed at, with the constants that are stored for them."""


def has_suspends(func: ir.Operation) -> bool:
    """Return whether an `llvm.func` contains suspend points."""
    return any(_is_suspend(op.operation) for block in func.regions[0].blocks for op in block.operations)


def _is_suspend(op: ir.Operation) -> bool:
    return calls(op, SUSPEND)


def make_resumable(func: ir.Operation, frame_argument: int, header: int) -> Frame:
    """Turn a function that returns 0 into one that returns 1 whenever it waits, and 0 when it is done.

    `frame_argument` is the number of the argument that points to the frame, `header` the bytes at its start that the
    frame's other users take (at least 4).
    """
    return _Machine(func, frame_argument, header).run()


def return_at_leaves(func: ir.Operation, waits: bool) -> None:
    """Let a function end where it calls `LEAVE`, each time as the last thing in a block; with 1 if its threads wait."""
    i32 = int_type(32)
    return_at(func, LEAVE, ("llvm.mlir.constant", i32, {"value": int_attr(i32, 1)}) if waits else None)


class _Machine(FrameBuilder):
    def __init__(self, func: ir.Operation, frame_argument: int, header: int) -> None:
        super().__init__(header, alignment=16)
        self.func = func
        self.region = func.regions[0]
        self.entry = self.region.blocks[0]
        self.frame = self.entry.arguments[frame_argument]
        self.numbers: list[ir.Operation] = []
        """The constants that say where to resume."""

    def run(self) -> Frame:
        # first: to find operations drops blocks that no branch leads to, and the new entry has none yet
        constants = find(self.func, REMATERIALIZED)
        allocas = find(self.func, ("llvm.alloca",))
        suspends = dict.fromkeys(op for op in find(self.func, ("llvm.call",)) if _is_suspend(op))
        old_entry, dispatch = self._new_entry()
        for op in constants:
            dispatch.append(op)
        self._move_allocas(allocas, dispatch)
        resumes = self._split(suspends)
        spilled = self._spill(resumes)
        self._dispatch(dispatch, old_entry, resumes)
        size = -(-self.size // self.alignment) * self.alignment
        return Frame(size, self.alignment, spilled, len(resumes), tuple(zip(resumes, self.numbers, strict=True)))

    # -- pieces ------------------------------------------------------------------------------------------

    def _new_entry(self) -> tuple[ir.Block, ir.Block]:
        """Return (the block the function used to start with, the block it starts with now: it keeps the arguments)."""
        old_entry = ir.Block.create_after(self.entry)
        for op in list(self.entry.operations):
            old_entry.append(op.operation)
        return old_entry, self.entry

    def _move_allocas(self, allocas: list[ir.Operation], dispatch: ir.Block) -> None:
        """Move stack memory to the frame."""
        for op in allocas:
            element = op.attributes["elem_type"].value  # pyright: ignore[reportAttributeAccessIssue]
            count = op.operands[0].owner.attributes["value"].value  # pyright: ignore[reportAttributeAccessIssue]
            size, alignment = size_and_alignment(element)
            if isinstance(element, ir.VectorType):  # accesses without an alignment are taken to have the vector's
                alignment = min(1 << (size - 1).bit_length(), _FRAMES_ALIGNMENT)
            if "alignment" in op.attributes:
                alignment = max(alignment, op.attributes["alignment"].value)  # pyright: ignore[reportAttributeAccessIssue]
            offset = self.reserve(-(-size // alignment) * alignment * count, alignment)
            op.result.replace_all_uses_with(self.field(ir.InsertionPoint(dispatch), self.frame, offset))
            op.erase()

    def _split(self, suspends: dict[ir.Operation, None]) -> list[ir.Block]:
        """Split blocks after suspend points, and return the blocks to resume at, in order."""
        resumes: list[ir.Block] = []
        for block in dict.fromkeys(op.block for op in suspends):
            operations = [op.operation for op in block.operations]
            indices = [index for index, op in enumerate(operations) if op in suspends]
            pieces = [block]
            for index, end in zip(indices, [*indices[1:], len(operations)], strict=True):
                pieces.append(ir.Block.create_after(pieces[-1]))
                for later in operations[index + 1 : end + 1]:
                    pieces[-1].append(later)
            for piece, index in zip(pieces[:-1], indices, strict=True):
                at = ir.InsertionPoint(piece)
                number = self.constant(at, len(self.numbers) + 1)
                self.numbers.append(number.owner.operation)
                self.store(at, number, self.frame, RESUME_OFFSET)
                self.op("llvm.return", at, (), (self.constant(at, 1),))
                operations[index].erase()
            resumes += pieces[1:]
        return resumes

    def _spill(self, resumes: list[ir.Block]) -> int:
        """Give the values that are alive at the start of a resume block slots in the frame."""
        blocks = list(self.region.blocks)[1:]
        number = {block: i for i, block in enumerate(blocks)}
        live_in = self._liveness(blocks, number)
        crossing: set[ir.Value] = set()
        for block in resumes:
            crossing |= live_in[number[block]]
        # in program order, so that the same program always gives the same frame
        values = [
            v
            for block in blocks
            for v in (*block.arguments, *(r for op in block.operations for r in op.operation.results))
        ]
        for value in values:
            if value in crossing:
                self._spill_value(value)
        return len(crossing)

    def _liveness(self, blocks: list[ir.Block], number: dict[ir.Block, int]) -> list[set[ir.Value]]:
        uses: list[set[ir.Value]] = [set() for _ in blocks]
        defs: list[set[ir.Value]] = [set() for _ in blocks]
        successors: list[list[int]] = [[] for _ in blocks]
        for i, block in enumerate(blocks):
            defs[i].update(block.arguments)
            for op in block.operations:
                for operand in op.operation.operands:
                    if operand not in defs[i]:
                        uses[i].add(operand)
                defs[i].update(op.operation.results)
            successors[i] = [number[s] for s in terminator(block).successors]
        outside: set[ir.Value] = set(self.entry.arguments)
        for op in self.entry.operations:
            outside.update(op.operation.results)
        for live in uses:
            live -= outside
        predecessors: list[list[int]] = [[] for _ in blocks]
        for i, targets in enumerate(successors):
            for t in targets:
                predecessors[t].append(i)
        live_in = [set(u) for u in uses]
        todo = list(range(len(blocks)))
        while todo:
            i = todo.pop()
            out: set[ir.Value] = set()
            for s in successors[i]:
                out |= live_in[s]
            new = uses[i] | (out - defs[i])
            if new != live_in[i]:
                live_in[i] = new
                todo.extend(predecessors[i])
        return live_in

    def _spill_value(self, value: ir.Value) -> None:
        offset = self.place_for(value.type)
        owner = value.owner
        if isinstance(owner, ir.Block):
            home = owner
            at = ir.InsertionPoint.at_block_begin(owner)
        else:
            home = owner.operation.block
            at = ir.InsertionPoint.after(owner.operation)
        users: dict[ir.Block, list[tuple[ir.Operation, int]]] = {}
        for use in list(value.uses):
            operation = use.owner.operation
            block = operation.block
            if block != home:
                users.setdefault(block, []).append((operation, use.operand_number))
        self.store(at, value, self.frame, offset)
        for block, uses in users.items():
            loaded = self.load(ir.InsertionPoint.at_block_begin(block), value.type, self.frame, offset)
            for operation, index in uses:
                operation.operands[index] = loaded

    def _dispatch(self, dispatch: ir.Block, old_entry: ir.Block, resumes: list[ir.Block]) -> None:
        at = ir.InsertionPoint(dispatch)
        if resumes:
            state = self.load(at, int_type(32), self.frame, RESUME_OFFSET)
            self.switch(at, state, [(0, old_entry), *enumerate(resumes, 1)])
        else:  # it needs the frame, but never waits
            self.op("llvm.br", at, (), (), None, [old_entry])


_FRAMES_ALIGNMENT = 64
"""Bytes that the first frame of a block is aligned to: the block's record before it is a multiple of that."""
