"""Exported objects: the code of a function for its architectures, what loads and calls it, and metadata, in one file.

An object needs nothing but the C library (and finds the driver and TVM-FFI where they are), and shows nothing but the names
it is asked for, so that any number of them can be linked together.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import DSLRuntimeError
from ..llvm import binding as llvm
from ..targets.host import elf, jit
from ..targets.host.call_context import WRAPPER
from ..targets.host.exported import place_code
from .entry import Function, entry, unguarded
from .thunks import Thunks
from .tvm_entry import tvm_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..targets.host.exported import Portable
    from ..targets.host.jit import Processor
    from .signature import Signature

ABI = 1
"""Of metadata and names; a file with a later one is refused."""
META = "__kiln_meta_"
"""Before the name of a function: its metadata."""
CHECK = ".kiln"
"""The section with the checksum, which linkers leave out."""
_CHECK_HEAD = b"kiln aot"
_RECORD = "kiln_function"
_WEAK = "TVMFFI"


def processor_of(host_target: str) -> Processor:
    """What `--host-target` names; empty: the processor that nearly all machines like this one have at least."""
    from ..base_dsl.options import parsed_host_target

    jit.host()
    if not host_target:
        return jit.common()[1]
    triple, cpu, features = parsed_host_target(host_target)
    architecture = triple.partition("-")[0]
    if architecture != jit.host()[0].partition("-")[0]:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    if cpu or features:
        return jit.supported(triple, cpu or "generic", features)
    return jit.common_processor(architecture)


class _Word(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64)]


def build(
    portables: Sequence[Portable],
    signature: Signature,
    processor: Processor,
    metadata: dict[str, Any],
    prefix: str = "",
    tvm_ffi: str = "",
) -> bytes:
    """The file. `prefix`: the name for C, empty for none; `tvm_ffi`: that for TVM-FFI."""
    machine = elf.MACHINES[processor[0].partition("-")[0]]
    data = elf.Data(machine)
    addresses = {
        "plan": data.constant(signature.plan(for_c=True), 8),
        "tvm_plan": data.constant(signature.plan(for_c=False), 8),
        "signature": data.text(signature.text),
    }
    for field, passed in (
        ("names", [each for each in signature.parameters if each.is_in_c]),
        ("tvm_names", signature.parameters),
    ):
        if passed:
            addresses[field] = data.records([(_Word(), {"address": data.text(each.name)}) for each in passed])
    first = portables[0]
    if first.place is None:
        addresses["code"] = data.records([place_code(data, first, f"{WRAPPER}.{first.architecture}")])
    else:
        addresses["module"], functions = first.place(data, portables)
        addresses |= {field: data.symbol(symbol) for field, symbol in functions.items()}
    if tvm_ffi:
        addresses["fail"] = data.symbol("TVMFFIErrorSetRaisedFromCStr")
        addresses["stream"] = data.symbol("TVMFFIEnvGetStream")
    data.records([(Function(), addresses)], _RECORD)
    thunks = Thunks(_RECORD, Function.error.offset)
    if prefix:
        thunks.add_c(prefix, signature)
    if tvm_ffi:
        thunks.add_tvm_ffi(tvm_ffi)
    thunks.add_slots(prefix or tvm_ffi)
    meta = META + (prefix or tvm_ffi)
    data.constant(json.dumps(metadata, separators=(",", ":")).encode() + b"\0", 1, meta)
    objects = [data.object(), thunks.object(processor)]
    objects += [each.processor_code(processor, f".{each.architecture}") for each in portables]
    parts = {part.name: part for each in portables for part in each.parts}
    made = elf.linked(_with_parts(objects, parts.values(), processor), {*thunks.names, meta}, _WEAK)
    check = elf.Section(CHECK, elf.EXCLUDE)
    check.append(_CHECK_HEAD + bytes(32))
    made.sections.append(check)
    return _signed(elf.written(made))


def _with_parts(objects: list[elf.Object], parts: Iterable[jit.Part], processor: Processor) -> list[elf.Object]:
    """Objects with those of the runtime's parts that they need."""
    rest = [unguarded, entry, tvm_entry, *(part.code for part in parts if part.name != "signals")]
    exports = {id(code): set(jit.exports_of(code)) for code in rest}
    while True:
        defined = {symbol.name for each in objects for symbol in each.symbols if symbol.is_defined}
        needed = {symbol.name for each in objects for symbol in each.symbols if not symbol.is_defined} - defined
        found = [code for code in rest if not needed.isdisjoint(exports[id(code)])]
        if not found:
            ours = sorted(name for name in needed if name.startswith("kiln_"))
            if ours:
                raise DSLRuntimeError(f"the code needs {', '.join(ours)}, which exported code does not have")
            return objects
        for code in found:
            rest.remove(code)
            objects = [*objects, elf.read(jit.object_of(code, processor))]


# --- checksums -------------------------------------------------------------------------------------------------------


def _digest_at(data: bytes) -> int:
    """Where the checksum lies; -1: there is none."""
    file = elf.File(data)
    for name, header in zip(file.names, file.headers, strict=True):
        if name == CHECK and data[header[4] : header[4] + len(_CHECK_HEAD)] == _CHECK_HEAD:
            return header[4] + len(_CHECK_HEAD)
    return -1


def _digest(data: bytes, at: int) -> bytes:
    return hashlib.blake2b(data[:at] + bytes(32) + data[at + 32 :], digest_size=32).digest()


def _signed(data: bytes) -> bytes:
    at = _digest_at(data)
    return data[:at] + _digest(data, at) + data[at + 32 :]


def is_whole(data: bytes) -> bool:
    """Whether an object is as it was written. Raises `elf.NotElf`."""
    at = _digest_at(data)
    return at >= 0 and data[at : at + 32] == _digest(data, at)
