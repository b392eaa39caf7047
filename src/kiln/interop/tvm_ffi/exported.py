# pyright: reportReturnType=false
"""Entry points of exported functions for TVM-FFI: the function itself, its type schema and documentation."""

from __future__ import annotations

from ...native import Library, Ptr, address, assign, i32, i64, inline, local, native, struct, text, u8, u64
from ...targets.host.libc import dlsym, strlen
from ...targets.host.text_buffer import Text, begin
from ..c.entry import ROOM, Function, keep
from .exported_arguments import OTHER_KIND, UNFIT, Caller, perform, wrong_count
from .reader import Argument, write_result

TVM_FFI = {
    "stream": "TVMFFIEnvGetStream",
    "make_text": "TVMFFIStringFromByteArray",
    "fail": "TVMFFIErrorSetRaisedFromCStr",
}
"""TVM-FFI's symbols, by fields of `Function`."""

tvm_entry: Library = Library("aot_tvm_ffi", prefix="kiln_aot_", passes=1, opt=1, small=True)


@native
def find_tvm_ffi(function: Ptr[Function]) -> None:
    """Look up TVM-FFI's functions: the process may have loaded it after the file."""
    if function.fail == None:
        for field, name in TVM_FFI.items():
            Ptr[u64](Ptr(function) + getattr(Function, field).offset)[0] = address(dlsym(None, text(name)))


@inline
def refuse(function, kind, message):
    """Raise an error of TVM-FFI, and keep its text."""
    if function.fail != None:
        function.fail(kind, message.memory)
    keep(message)


@tvm_entry.export
def call_by_tvm_ffi(function: Ptr[Function], arguments: Ptr[Argument], count: i32, result: Ptr[Argument]) -> i32:
    """Call the function. Returns 0, or -1 with the error in TVM-FFI's place."""
    message = local(Text)
    memory = local(u8, ROOM)
    header = function.full_plan
    caller = local(Caller)
    begin(message, memory, ROOM)
    find_tvm_ffi(function)
    if i64(count) != header.count:
        wrong_count(function, text("the number of arguments"), i64(count), header.count, message)
        refuse(function, text("TypeError"), message)
        return -1
    slots = Ptr(local(u8, header.slots_bytes))
    assign(caller, stream=0, asks=1, enters=1)
    wrong = perform(function, arguments, slots, caller, message)
    if wrong == OTHER_KIND:
        refuse(function, text("TypeError"), message)
        return -1
    if wrong != 0:
        refuse(function, text("ValueError") if wrong == UNFIT else text("RuntimeError"), message)
        return -1
    write_result(header, slots, result)
    return 0


@struct
class ByteArray:
    """TVMFFIByteArray."""

    data: Ptr
    size: u64


@tvm_entry.export
def tell_tvm_ffi(function: Ptr[Function], words: Ptr, result: Ptr[Argument]) -> i32:
    """Return a text to TVM-FFI."""
    find_tvm_ffi(function)
    array = local(ByteArray)
    assign(array, data=words, size=strlen(words))
    if function.make_text == None:
        return -1
    return function.make_text(array, result)
