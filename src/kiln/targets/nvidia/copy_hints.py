"""L2 cache hints on `cp.async`, which some versions of ptxas encode as an illegal instruction.

ptxas (CUDA 13.0 and 13.4) has two forms of such a copy. In the one whose address in shared memory is the sum of a
register and a uniform register, it encodes the policy of a hint where the hardware does not expect it, and the kernel
ends with an illegal instruction (on an H200). Which form it chooses cannot be told from the PTX. So the cubin is
searched, and code with hints that contains that form is compiled again without hints, which change no results.
"""

from __future__ import annotations

import re
import struct

_COPY = re.compile(r"(cp\.async\.c[ag]\.shared\.global)\.L2::cache_hint((?:\.L2::\d+B)?) ([^;]*), %rd\d+;")
_INSTRUCTION = 16
_OPCODE = 0xFFF
_UNIFORM_COPY = 0xDAE
"""The opcode bits of an instruction, and the opcode of LDGSTS with a uniform register in its address."""
_CODE = 0x4
"""The flag of a section that holds instructions."""


def without_hints(ptx: str) -> str:
    """Return PTX without hints on asynchronous copies."""
    return _COPY.sub(r"\1\2 \3;", ptx)


def are_wrong(ptx: str, cubin: bytes) -> bool:
    """Return whether PTX has hints on asynchronous copies and its cubin may encode them wrongly."""
    return _COPY.search(ptx) is not None and any(
        int.from_bytes(code[at : at + 2], "little") & _OPCODE == _UNIFORM_COPY
        for code in _sections(cubin)
        for at in range(0, len(code), _INSTRUCTION)
    )


def _sections(cubin: bytes) -> list[bytes]:
    """Return the sections of an ELF file of 64 bits that hold instructions."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    sections: list[bytes] = []
    for number in range(count):
        _, _, flags, _, offset, length = struct.unpack_from("<IIQQQQ", cubin, table + number * size)
        if flags & _CODE:
            sections.append(cubin[offset : offset + length])
    return sections
