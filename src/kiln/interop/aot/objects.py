"""Exported objects: the code of a function for its architectures, its entry points, and metadata, in one file.

An object needs only the C library (it looks up the driver, TVM-FFI and PyTorch in the process) and exports only its
entry points, so any number of objects can be linked together.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLRuntimeError
from ...llvm import binding as llvm
from ...targets.host import elf, jit
from ...targets.host.call_context import WRAPPER
from ...targets.host.elf import shared_library
from ...targets.host.exported import Word, place_code
from ..c.entry import Function, entry, unguarded
from ..c.signature import type_schema
from ..jax.exported import xla_entry
from ..torch.exported import torch_entry
from ..tvm_ffi.exported import tvm_entry
from ..tvm_ffi.exported_arguments import arguments
from .thunks import Thunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...targets.host.exported import Portable
    from ...targets.host.jit import Processor
    from ..c.signature import Signature
    from .conventions import EntryPoints

ABI = 1
"""The version of metadata and symbols; files of a later one are refused."""
META = "__kiln_meta_"
"""The prefix of the symbol of a function's metadata."""
CHECK = ".kiln"
"""The section of the checksum, which linkers drop."""
_CHECK_HEAD = b"kiln aot"
_DIGEST = 32
_LIBRARY_CHECK = struct.Struct("<8sQQ32s")
"""The checksum of a library: a mark, the size of the file, the size of the loaded part, the digest."""
_RECORD = "kiln_function"


def processor_of(host_target: str) -> Processor:
    """Return the processor of `--host-target`; if that is empty, the baseline of nearly all machines like this one."""
    from ...base_dsl.options import parsed_host_target

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


def build(
    portables: Sequence[Portable],
    signature: Signature,
    processor: Processor,
    metadata: dict[str, Any],
    names: EntryPoints,
) -> elf.Object:
    """Return the linked object of a function, to be written as an object or a library."""
    machine = elf.MACHINES[processor[0].partition("-")[0]]
    data = elf.Data(machine)
    addresses = {
        "plan": data.constant(signature.plan(for_c=True), 8),
        "full_plan": data.constant(signature.plan(for_c=False), 8),
        "signature": data.text(signature.text),
    }
    for field, passed in (
        ("names", [each for each in signature.parameters if each.is_in_c]),
        ("full_names", signature.parameters),
    ):
        if passed:
            addresses[field] = data.records([(Word(), {"address": data.text(each.name)}) for each in passed])
    on_host = [each for each in portables if each.place is None]
    on_gpu = [each for each in portables if each.place is not None]
    for each in on_host:
        addresses["code"] = data.records([place_code(data, each, f"{WRAPPER}.{each.architecture}")])
    if on_gpu and on_gpu[0].place is not None:
        addresses["module"], functions = on_gpu[0].place(data, on_gpu)
        addresses |= {field: data.symbol(symbol) for field, symbol in functions.items()}
    thunks = Thunks(_RECORD)
    where = bool(on_host), bool(on_gpu)
    if names.c:
        thunks.add_c(names.c, signature)
    if names.tvm_ffi:
        thunks.add_tvm_ffi(names.tvm_ffi)
        schema = json.dumps({"type_schema": json.dumps(type_schema(signature))})
        for what, words in (("metadata", schema), ("doc", metadata["doc"])):
            if words:
                data.constant(words.encode() + b"\0", 1, f"kiln_tvm_{what}")
                thunks.tell_tvm_ffi(f"__tvm_ffi__{what}_{names.tvm_ffi}", f"kiln_tvm_{what}")
    if names.torch:
        addresses["torch"] = names.place_torch(data, signature, *where)
        thunks.add_torch(names.name)
    if names.jax:
        addresses["xla"] = names.place_xla(data, signature, *where, metadata["prints"])
        thunks.add_xla(names.name)
    data.records([(Function(), addresses)], _RECORD)
    thunks.add_slots(names.name)
    meta = META + names.name
    data.constant(json.dumps(metadata, separators=(",", ":")).encode() + b"\0", 1, meta)
    objects = [data.object(), thunks.object(processor)]
    objects += [each.processor_code(processor, f".{each.architecture}") for each in portables]
    parts = {part.name: part for each in portables for part in each.parts}
    return elf.linked(_with_parts(objects, parts.values(), processor), {*thunks.names, meta})


def object_file(object_: elf.Object) -> bytes:
    """Return the file of an object, with a checksum."""
    check = elf.Section(CHECK, elf.EXCLUDE)
    check.append(_CHECK_HEAD + bytes(_DIGEST))
    object_.sections.append(check)
    return _signed(elf.written(object_))


def library_file(object_: elf.Object) -> bytes:
    """Return the file of a shared library, with a checksum."""
    data, loaded = shared_library.written(object_)
    check = _LIBRARY_CHECK.pack(_CHECK_HEAD, len(data), loaded, bytes(_DIGEST))
    return _signed(data[: shared_library.FREE] + check + data[shared_library.FREE + len(check) :])


def _with_parts(objects: list[elf.Object], parts: Iterable[jit.Part], processor: Processor) -> list[elf.Object]:
    """Return objects with the parts of the runtime that they need."""
    ours = (unguarded, entry, arguments, tvm_entry, torch_entry, xla_entry)
    rest = [*ours, *(part.code for part in parts if part.name != "signals")]
    exports = {id(code): set(jit.exports_of(code)) for code in rest}
    while True:
        defined = {symbol.name for each in objects for symbol in each.symbols if symbol.is_defined}
        needed = {symbol.name for each in objects for symbol in each.symbols if not symbol.is_defined} - defined
        matching = [code for code in rest if not needed.isdisjoint(exports[id(code)])]
        if not matching:
            missing = sorted(name for name in needed if name.startswith("kiln_"))
            if missing:
                raise DSLRuntimeError(f"the code needs {', '.join(missing)}, which exported code does not have")
            return objects
        for code in matching:
            rest.remove(code)
            objects = [*objects, elf.read(jit.object_of(code, processor))]


# --- checksums -------------------------------------------------------------------------------------------------------


def _digest_at(data: bytes) -> int:
    """Return where the digest is, or -1."""
    file = elf.File(data)
    size = len(_CHECK_HEAD)
    free = shared_library.FREE
    if data[free : free + size] == _CHECK_HEAD:
        return free + _LIBRARY_CHECK.size - _DIGEST
    for name, header in zip(file.names, file.headers, strict=True):
        if name == CHECK and data[header.offset : header.offset + size] == _CHECK_HEAD:
            return header.offset + size
    return -1


def _digest(data: bytes, at: int) -> bytes:
    """Return the digest of a file except for the digest itself.

    For a library it covers only what is loaded: `strip` changes the rest.
    """
    held = data[:at] + bytes(_DIGEST) + data[at + _DIGEST :]
    if at < shared_library.FREE + _LIBRARY_CHECK.size:
        head = elf.Header.from_buffer_copy(data)
        head.sections = head.section_bytes = head.section_count = head.names = 0
        held = bytes(head) + held[len(bytes(head)) : _LIBRARY_CHECK.unpack_from(data, shared_library.FREE)[2]]
    return hashlib.blake2b(held, digest_size=_DIGEST).digest()


def _signed(data: bytes) -> bytes:
    at = _digest_at(data)
    return data[:at] + _digest(data, at) + data[at + _DIGEST :]


def is_whole(data: bytes) -> bool:
    """Return whether a file is as it was written. Raises `elf.NotElf`.

    Libraries that linkers or other tools made of exported objects are not checked.
    """
    at = _digest_at(data)
    if elf.File(data).kind == elf.SHARED:
        if at < 0 or _LIBRARY_CHECK.unpack_from(data, shared_library.FREE)[1] != len(data):
            return True
    return at >= 0 and data[at : at + _DIGEST] == _digest(data, at)
