"""`tcgen05.mma` of the CPU runtime called by itself: memory of one CTA or a pair, random operands, definitions."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import Any

import numpy as np

from kiln.dialects.nvgpu import tcgen05_definitions as definitions
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.dialects.nvgpu import tensor_memory
from kiln.targets.cpu.runtime import parts, umma
from kiln.targets.cpu.runtime.records import BLOCK_BYTES, TMEM_BYTES, BlockRecord, FrameHeader, Mma
from kiln.targets.host import jit

SMEM = 1 << 16
A_AT, B_AT = 0, 1 << 15
"""Where operands start in shared memory."""
D_AT, A_COLUMN, SFA_AT, SFB_AT, METADATA_AT = 32, 320, 352, 376, 400
"""Columns of tensor memory of D, an A, scale factors, and the metadata of a sparse A."""
CHUNK = SMEM + BLOCK_BYTES + TMEM_BYTES
BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e3m2": 6,
    "e2m3": 6,
    "e2m1": 4,
    "s8": 8,
    "u8": 8,
    "f32": 32,
    "s32": 32,
}


class Ctas:
    """Shared and tensor memory of the CTAs of a cluster, as the runtime has them."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self._bytes = np.zeros(count * CHUNK + 1024, np.uint8)
        start = -self._bytes.ctypes.data % 1024
        self.bytes = self._bytes[start : start + count * CHUNK]
        at = self.bytes.ctypes.data
        self.records = [BlockRecord.from_address(at + n * CHUNK + SMEM) for n in range(count)]
        self.smem = [self.bytes[n * CHUNK : n * CHUNK + SMEM] for n in range(count)]
        tmem = [self.bytes[n * CHUNK + SMEM + BLOCK_BYTES : (n + 1) * CHUNK] for n in range(count)]
        self.tmem = [each.view(np.uint32).reshape(128, 512) for each in tmem]
        rng = np.random.default_rng(seed)
        for n, record in enumerate(self.records):
            record.cluster, record.chunk, record.rank = at + SMEM, CHUNK, n
            record.smem, record.tmem = at + n * CHUNK, self.tmem[n].ctypes.data
            record.tmem_used = 0xFFFF
            record.cluster_x, record.cluster_y, record.cluster_z = count, 1, 1
            self.smem[n][:] = rng.integers(0, 256, SMEM)
            self.tmem[n][:] = 0xFFFFFFFF

    def memory(self) -> definitions.Memory:
        return definitions.Memory([bytes(each) for each in self.smem], [each.tolist() for each in self.tmem])


@dataclasses.dataclass(frozen=True)
class Case:
    """An MMA, and how its operands lie."""

    kind: str
    a_type: str
    b_type: str
    m: int
    n: int
    accumulator: str = "f32"
    cta_group: int = 1
    ws: bool = False
    a_in_tmem: bool = False
    a_major: str = "k"
    b_major: str = "k"
    swizzle: str = "128b"
    scale: str = ""
    block: int = 0
    sfa_id: int = 0
    sfb_id: int = 0
    k96: bool = False
    negate: tuple[bool, bool] = (False, False)
    saturate: bool = False
    scale_d: int = 0
    masks: tuple[int, ...] = ()
    zero_columns: int = 0
    lane: int = 0
    a_start: int = 0
    """Bytes from the start of a row of 128 bytes to the operands (K-major)."""
    sparse: bool = False
    sparse_id: int = 0

    @property
    def k(self) -> int:
        return descriptors.decode(self.kind, self.idesc).k

    @property
    def stored(self) -> int:
        """Elements of a row of A."""
        return self.k // 2 if self.sparse else self.k

    @property
    def layout(self) -> dict[str, Any]:
        return {"cta_group": self.cta_group, "ws": self.ws, "sparse": self.sparse}

    @property
    def idesc(self) -> int:
        if self.scale:
            return descriptors.block_scaled_instruction_descriptor(
                self.kind,
                self.a_type,
                self.b_type,
                self.scale,
                self.m,
                self.n,
                block=self.block,
                cta_group=self.cta_group,
                a_major=self.a_major,
                b_major=self.b_major,
                negate_a=self.negate[0],
                negate_b=self.negate[1],
                sfa_id=self.sfa_id,
                sfb_id=self.sfb_id,
                k96=self.k96,
            )
        return descriptors.instruction_descriptor(
            self.kind,
            self.a_type,
            self.b_type,
            self.accumulator,
            self.m,
            self.n,
            cta_group=self.cta_group,
            a_major=self.a_major,
            b_major=self.b_major,
            negate_a=self.negate[0],
            negate_b=self.negate[1],
            saturate=self.saturate,
            ws=self.ws,
            sparse=self.sparse,
            sparse_id=self.sparse_id,
        )

    def descriptor(self, of_a: bool) -> int:
        """The descriptor of an operand that lies without gaps but for those that a swizzle's rows leave."""
        rows = (self.m if of_a else self.n) // self.cta_group
        major, at = (self.a_major, A_AT) if of_a else (self.b_major, B_AT)
        wide = {"none": 16, "128b_32b": 128, "128b": 128, "64b": 64, "32b": 32}[self.swizzle]
        size = max(definitions.operand_bits(self.kind, ""), 8) // 8
        chunks = self.k * definitions.operand_bits(self.kind, "") // 128
        if major == "k":
            leading, stride = (rows * 16, 128) if self.swizzle == "none" else (16, 8 * wide)
            if self.k96 and self.a_start:
                following = at + rows * 128
                made = descriptors.tcgen05_matrix_descriptor(
                    at + self.a_start, following, stride, self.swizzle, absolute_leading=True
                )
                return made
            return descriptors.tcgen05_matrix_descriptor(at + self.a_start, leading, stride, self.swizzle)
        repeats = -(-rows * size // wide)
        deep = 4 if self.swizzle == "128b_32b" else 8
        leading, stride = (128 * repeats, 128) if self.swizzle == "none" else (deep * wide, deep * wide * repeats)
        assert chunks
        return descriptors.tcgen05_matrix_descriptor(at, leading, stride, self.swizzle)

    def record(self, accumulate: bool) -> Mma:
        flags = umma.ACCUMULATE * accumulate | umma.WS * self.ws | umma.A_IN_TENSOR_MEMORY * self.a_in_tmem
        flags |= umma.SPARSE_A * self.sparse
        made = Mma(
            kind=umma.KINDS.index(self.kind),
            flags=flags,
            cta_group=self.cta_group,
            idesc=self.idesc,
            a=self.lane << 16 | A_COLUMN if self.a_in_tmem else self.descriptor(True),
            b=self.descriptor(False),
            d=self.lane << 16 | D_AT,
            sfa=SFA_AT,
            sfb=SFB_AT,
            vector=self.block,
            scale_input_d=self.scale_d,
            zero_columns=self.zero_columns,
            metadata=self.lane << 16 | METADATA_AT,
        )
        for number, mask in enumerate(self.masks):
            made.masks[number] = mask
        return made

    def defined(self, ctas: Ctas, accumulate: bool, elements: Any = None) -> dict[Any, int]:
        record, memory = self.record(accumulate), ctas.memory()
        places = (self.idesc, memory, record.d, record.a, record.b)
        if self.scale:
            return definitions.tcgen05_mma_block_scale(
                self.kind,
                self.block,
                *places,
                record.sfa,
                record.sfb,
                accumulate,
                cta_group=self.cta_group,
                a_in_tmem=self.a_in_tmem,
                elements=elements,
            )
        if self.ws:
            return definitions.tcgen05_mma_ws(
                self.kind,
                *places,
                accumulate,
                a_in_tmem=self.a_in_tmem,
                zero_column_mask=self.zero_columns,
                elements=elements,
            )
        sparse = (record.metadata,) if self.sparse else ()
        define = definitions.tcgen05_mma_sp if self.sparse else definitions.tcgen05_mma
        return define(
            self.kind,
            *places,
            *sparse,
            accumulate,
            cta_group=self.cta_group,
            a_in_tmem=self.a_in_tmem,
            disable_output_lane=self.masks,
            scale_input_d=self.scale_d,
            elements=elements,
        )

    # -- memory from matrices -------------------------------------------------------------------------------------

    def place(self, ctas: Ctas, a: np.ndarray, b: np.ndarray, d: np.ndarray | None = None) -> None:
        """Write A (m x k, or half of that) and B (n x k), as bits, and D where an MMA reads them."""
        for of_a, matrix, type_, major in ((True, a, self.a_type, self.a_major), (False, b, self.b_type, self.b_major)):
            if of_a and self.a_in_tmem:
                self._a_to_tmem(ctas, a)
                continue
            rows = len(matrix) // self.cta_group
            for cta in range(self.cta_group):
                self._to_smem(
                    ctas.smem[cta], self.descriptor(of_a), matrix[cta * rows : (cta + 1) * rows], type_, major
                )
        if d is not None:
            cta, lane, column = self.cells()
            for number in range(self.cta_group):
                here = cta == number
                ctas.tmem[number][lane[here], column[here]] = d[here]

    def cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """CTA, lane and column of each element of D."""
        cells = [
            tensor_memory.accumulator_cell(row, column, self.m, self.n, **self.layout)
            for row in range(self.m)
            for column in range(self.n)
        ]
        lane, column, cta = np.array(cells).reshape(self.m, self.n, 3).transpose(2, 0, 1)
        return cta, lane + self.lane, column + D_AT

    def _to_smem(self, smem: np.ndarray, descriptor: int, matrix: np.ndarray, type_: str, major: str) -> None:
        bits, narrow = definitions.operand_bits(self.kind, type_), BITS[type_] if BITS[type_] < 8 else 0
        rows, k = matrix.shape
        at = np.array(
            [
                descriptors.operand_address(descriptor, major, bits, row, inner)
                for row in range(rows)
                for inner in range(k)
            ]
        )
        values = matrix.reshape(-1).astype(np.uint64)
        if bits >= 8 and not narrow:
            kind = {8: np.uint8, 16: np.uint16, 32: np.uint32}[bits]
            smem.view(kind)[at // (bits // 8)] = values
            return
        within = np.tile(np.arange(k) % 2 * 4, rows) if bits == 4 else (at & 15) * narrow
        start = at if bits == 4 else at & ~15
        for bit in range(narrow):
            byte, shift = start + (within + bit) // 8, ((within + bit) % 8).astype(np.uint8)
            np.bitwise_and.at(smem, byte, ~(np.uint8(1) << shift))
            np.bitwise_or.at(smem, byte, (values >> np.uint64(bit) & np.uint64(1)).astype(np.uint8) << shift)

    def _a_to_tmem(self, ctas: Ctas, a: np.ndarray) -> None:
        bits = definitions.operand_bits(self.kind, self.a_type)
        shift = 2 if bits == 8 and self.a_type == "e2m1" else 0
        for row in range(self.m):
            whole = sum(int(value) << bits * k + shift for k, value in enumerate(a[row]))
            words = np.frombuffer(whole.to_bytes(self.stored * bits // 8, "little"), np.uint32)
            for part in tensor_memory.a_parts(row, 0, bits, self.m, **self.layout):
                ctas.tmem[part.cta][part.lane + self.lane, A_COLUMN : A_COLUMN + len(words)] = words

    def place_metadata(self, ctas: Ctas, indices: np.ndarray) -> None:
        """Write the indices of a sparse A, m x chunks."""
        for (row, chunk), index in np.ndenumerate(indices):
            part = tensor_memory.metadata_part(row, chunk, self.kind, self.m, self.cta_group, self.sparse_id)
            cells = ctas.tmem[part.cta]
            at = part.lane + self.lane, part.column + METADATA_AT
            cells[at] = int(cells[at]) & ~(15 << part.bit) & 0xFFFFFFFF | int(index) << part.bit

    def place_scales(self, ctas: Ctas, sfa: np.ndarray, sfb: np.ndarray) -> None:
        """Write scale factors, m x count and n x count bytes."""
        own = self.m // self.cta_group
        for (row, number), byte in np.ndenumerate(sfa):
            parts = tensor_memory.scale_parts(row % own, number, self.sfa_id)
            self._scale(ctas.tmem[row // own], SFA_AT, parts, 4, int(byte))
        for cta, ((row, number), byte) in itertools.product(range(self.cta_group), np.ndenumerate(sfb)):
            two_by_two = self.cta_group == 2 and self.m == 128
            of = tensor_memory.sfb_parts_2x2(row, self.n, number, self.sfb_id) if two_by_two else None
            parts = tensor_memory.scale_parts(row, number, self.sfb_id) if of is None else of
            self._scale(ctas.tmem[cta], SFB_AT, parts, -(-self.n // 128) * 4, int(byte))

    @staticmethod
    def _scale(tmem: np.ndarray, at: int, parts: Any, further: int, byte: int) -> None:
        for part in parts:
            column, shift = at + part.column + part.bit // 32 * further, part.bit % 32
            tmem[part.lane, column] = int(tmem[part.lane, column]) & ~(255 << shift) & 0xFFFFFFFF | byte << shift


def issue(record: Mma, ctas: Ctas, issuer: int) -> int:
    """Issue an MMA as a thread of a CTA, which executes it at once; return the code that it is refused with, or 0."""
    place = jit.part_library(parts.TCGEN05).addresses["kiln_cpu_tcgen05_mma"]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(place)
    frame = FrameHeader(block=ctypes.addressof(ctas.records[issuer]))
    return call(ctypes.addressof(frame), ctypes.addressof(record))


def multiply(case: Case, ctas: Ctas, accumulate: bool, issuer: int = 0) -> int:
    """Execute an MMA."""
    return issue(case.record(accumulate), ctas, issuer)


def random_bits(rng: np.random.Generator, type_: str, shape: tuple[int, int], near: bool) -> np.ndarray:
    """Elements of a type: floats about 1 (`near`), or any, of which few are infinite or NaN; any integers."""
    bits = BITS[type_]
    made = rng.integers(0, 1 << bits, shape, dtype=np.uint64)
    if type_ in ("s8", "u8", "s32") or bits < 8:
        return made
    exponent, fraction = definitions.FORMATS[type_]
    padding = bits - 1 - exponent - fraction  # of tf32
    exponents = made >> (fraction + padding) & ((1 << exponent) - 1)
    if near:
        middle = (1 << exponent - 1) - 1
        wanted = rng.integers(middle - 3, middle + 3, shape, dtype=np.uint64)
    else:
        rare = rng.random(shape) < 0.01
        wanted = np.where(exponents == (1 << exponent) - 1, np.where(rare, exponents, 0), exponents)
    return made & ~np.uint64((1 << exponent) - 1 << fraction + padding) | wanted << (fraction + padding)


def random_accumulator(rng: np.random.Generator, case: Case, near: bool) -> np.ndarray:
    return random_bits(rng, case.accumulator, (case.m, case.n), near)


def random_scales(rng: np.random.Generator, case: Case, near: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scale factors about 1, or any bits, of which more are at the ends of the range."""
    count = case.k // case.block
    if near:
        middle = (0x30, 0x48) if case.scale == "ue4m3" else (124, 131)
        return rng.integers(*middle, (case.m, count)), rng.integers(*middle, (case.n, count))
    made = [rng.integers(0, 256, (rows, count)) for rows in (case.m, case.n)]
    for scales in made:
        ends = rng.random(scales.shape)
        scales[ends < 0.1] = 0
        scales[(ends > 0.1) & (ends < 0.2)] = 254 if case.scale == "ue8m0" else 0x7E
        scales[ends > 0.97] = 255
        scales[(ends > 0.94) & (ends < 0.97)] = 0x80
    return made[0], made[1]


def random_memory(case: Case, near: bool, seed: int = 0) -> Ctas:
    """Memory with random operands."""
    rng = np.random.default_rng(seed)
    ctas = Ctas(case.cta_group, seed)
    a = random_bits(rng, case.a_type, (case.m, case.stored), near)
    b = random_bits(rng, case.b_type, (case.n, case.k), near)
    case.place(ctas, a, b, random_accumulator(rng, case, near))
    if case.scale:
        case.place_scales(ctas, *random_scales(rng, case, near))
    if case.sparse:
        case.place_metadata(ctas, random_indices(rng, case))
    return ctas


def random_indices(rng: np.random.Generator, case: Case) -> np.ndarray:
    """Indices of the chunks of a sparse A, which say where its elements are."""
    tf32 = case.kind == "tf32"
    return rng.choice([4, 14] if tf32 else definitions.SPARSE_INDICES, (case.m, case.k // (2 if tf32 else 4)))


def differences(
    case: Case, near: bool, accumulate: bool, count: int = 60, seed: int = 0, ctas: Ctas | None = None
) -> list[Any]:
    """Execute an MMA of random operands, or those of `ctas`; return elements of D, of `count` random ones, that differ
    from the definition, and cells beside D that changed."""
    rng = np.random.default_rng(seed + 1)
    ctas = random_memory(case, near, seed) if ctas is None else ctas
    elements = list(zip(rng.integers(0, case.m, count).tolist(), rng.integers(0, case.n, count).tolist(), strict=True))
    wanted = case.defined(ctas, accumulate, elements)
    before = [tmem.copy() for tmem in ctas.tmem]
    assert multiply(case, ctas, accumulate, issuer=seed % case.cta_group) == 0
    wrong = [
        (cell, hex(bits), hex(ctas.tmem[cell.cta][cell.lane, cell.column]))
        for cell, bits in wanted.items()
        if ctas.tmem[cell.cta][cell.lane, cell.column] != bits
    ]
    columns = tensor_memory.accumulator_columns(case.m, case.n, **case.layout)
    for old, new in zip(before, ctas.tmem, strict=True):
        kept = new.copy()
        kept[:, D_AT : D_AT + columns] = old[:, D_AT : D_AT + columns]
        wrong += np.argwhere(kept != old).tolist()
    return wrong
