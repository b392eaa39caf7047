# pyright: reportReturnType=false
"""An exported function as an operator of PyTorch, which a library registers when a process with PyTorch loads it.

PyTorch's functions are looked up then, so neither linking nor loading the file needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...native import Fn, Library, Ptr, address, assign, extern, local, native, ref, text
from ...native.types import i32, i64, struct, u8, u32, u64
from ...targets.host.libc import dlopen, dlsym, find_all
from ...targets.host.text_buffer import Text, begin
from ..c.entry import ROOM, Function, keep, name_argument, say, say_integer
from ..tvm_ffi.exported_arguments import Caller, perform
from ..tvm_ffi.reader import NONE, OPAQUE, Argument
from . import reader
from .reader import INPUT, OUTPUT, STREAM, Operator, Output, State, torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def _runs(functions: Mapping[str, str]) -> dict[int, str]:
    """Return the symbols of adjacent fields of `Torch`, each followed by a zero, by the offset of the first field."""
    runs: dict[int, str] = {}
    for offset, name in sorted((getattr(reader.Torch, field).offset, name) for field, name in functions.items()):
        first = next((first for first, names in runs.items() if first + 8 * names.count("\0") == offset), offset)
        runs[first] = f"{runs.get(first, '')}{name}\0"
    return runs


RUNS = _runs(reader.FUNCTIONS)
WRITING_RUNS = _runs(reader.WRITING)
_UNREADABLE = (
    "it cannot be read: tensors of one call are on one device, of an element type that DLPack has, and no more than 32"
)
ON_HOST = 1
ON_GPU = 2
_NOW = 2
_LOADED = 4
_STAYS = 0x1000
"""RTLD_NOW, RTLD_NOLOAD, RTLD_NODELETE"""


@struct
class ElementType:
    """An element type."""

    name: Ptr
    """The function that returns torch's number; later versions name it without the prefix "aoti_"."""
    dlpack: i64


@struct
class Registration:
    """An exported operator."""

    namespace: Ptr
    name: Ptr
    schema: Ptr
    kernel: Ptr
    meta: Ptr
    """The kernel that only makes outputs, for tensors without memory."""
    devices: i64
    types: Ptr[ElementType]
    type_count: i64
    outputs: Ptr[Output]
    """Their types are DLPack's until the operator is registered."""
    registered: i64
    operator: Operator


@struct
class AddressInfo:
    """Dl_info of dladdr."""

    file: Ptr
    base: Ptr
    name: Ptr
    place: Ptr


torch_entry: Library = Library("aot_torch", prefix="kiln_aot_", passes=1, opt=1, small=True)


@extern
def dladdr(place: Ptr, info: Ptr) -> i32: ...


# --- registering -----------------------------------------------------------------------------------------------------


@native
def find_torch(registration: Ptr[Registration], library: Ptr) -> Ptr:
    """Look up PyTorch's functions. Returns null, or the name of one that PyTorch lacks."""
    table = torch.place
    for first, names in RUNS.items():
        missing = find_all(library, text(names), Ptr[u64](Ptr(table) + first))
        if missing != None:
            return missing
    for first, names in WRITING_RUNS.items():
        missing = find_all(library, text(names), Ptr[u64](Ptr(table) + first))
        if missing != None and registration.operator.written != 0:
            return missing
    box = dlsym(library, text("torch_delete_stable_ivalue"))
    if box == None:
        box = dlsym(None, text("_ZdlPv"))
    Ptr[u64](ref(table).delete_box)[0] = address(box)
    cuda = dlopen(text("libtorch_cuda.so"), _NOW | _LOADED)
    stream = dlsym(cuda if cuda != None else library, text("aoti_torch_get_current_cuda_stream"))
    Ptr[u64](ref(table).stream)[0] = address(stream)
    table.cpu = i64(Fn[[], i32](dlsym(library, text("aoti_torch_device_type_cpu")))())
    table.cuda = i64(Fn[[], i32](dlsym(library, text("aoti_torch_device_type_cuda")))())
    for number in range(registration.type_count):
        each = ref(registration.types)[number]
        number_of = dlsym(library, each.name)
        if number_of == None:
            number_of = dlsym(library, each.name + 5)
        if number_of != None:
            table.types[i64(Fn[[], i32](number_of)()) & 63] = u32(each.dlpack)
    for number in range(registration.operator.output_count):
        output = ref(registration.outputs)[number]
        for kind in range(64):
            if i64(table.types[kind]) == output.dtype:
                output.dtype = kind
                break
    return None


@native
def add_kernel(registration: Ptr[Registration], library: Ptr, key: Ptr, kernel: Ptr) -> i32:
    """Register a kernel for a dispatch key."""
    handle = local(Ptr)
    add = dlsym(library, text("torch_library_impl"))
    begin_ = dlsym(library, text("aoti_torch_library_init_impl"))
    handle[0] = None
    status = Fn[[Ptr, Ptr, Ptr, u32, Ptr], i32](begin_)(registration.namespace, key, text("kiln"), 0, handle)
    if status != 0:
        return status
    return Fn[[Ptr, Ptr, Ptr, u64], i32](add)(handle[0], registration.name, kernel, reader.VERSION)


@native
def define(registration: Ptr[Registration], library: Ptr) -> i32:
    """Define the operator; from torch 2.12 on with the tags that `torch.compile` relies on."""
    handle = local(Ptr)
    begin_ = dlsym(library, text("aoti_torch_library_init_fragment"))
    handle[0] = None
    status = Fn[[Ptr, Ptr, u32, Ptr], i32](begin_)(registration.namespace, text("kiln"), 0, handle)
    if status != 0:
        return status
    with_tags = dlsym(library, text("torch_library_def_with_tags"))
    compliant = dlsym(library, text("torch_tag_pt2_compliant_tag"))
    exact = dlsym(library, text("torch_tag_needs_exact_strides"))
    if with_tags == None or compliant == None or exact == None:
        return Fn[[Ptr, Ptr], i32](dlsym(library, text("aoti_torch_library_def")))(handle[0], registration.schema)
    tags = local(i32, 2)
    tags[0] = Fn[[], i32](compliant)()
    tags[1] = Fn[[], i32](exact)()
    return Fn[[Ptr, Ptr, Ptr, i32], i32](with_tags)(handle[0], registration.schema, tags, 2)


@native
def try_register(function: Ptr[Function], message: Ptr[Text]) -> i32:
    """Register the operator; not 0 with a message if that fails."""
    library = dlopen(text("libtorch_cpu.so"), _NOW | _LOADED)
    registration = Ptr[Registration](function.torch)
    about = local(AddressInfo)
    if dlsym(library, text("aoti_torch_library_init_fragment")) == None:
        say(message, text("PyTorch is not loaded"))
        return -1
    if dlsym(library, text("torch_library_impl")) == None:
        say(message, text("PyTorch is older than 2.10"))
        return -1
    missing = find_torch(registration, library)
    if missing != None:
        say(message, text("PyTorch lacks "))
        say(message, missing)
        return -1
    registration.operator.outputs[0] = registration.outputs
    if dladdr(function, about) != 0:
        dlopen(about.file, _NOW | _LOADED | _STAYS)  # PyTorch keeps the kernels
    status = define(registration, library)
    if status == 0 and registration.devices & ON_HOST != 0:
        status = add_kernel(registration, library, text("CPU"), registration.kernel)
    if status == 0 and registration.devices & ON_GPU != 0:
        status = add_kernel(registration, library, text("CUDA"), registration.kernel)
    if status == 0:
        status = add_kernel(registration, library, text("Meta"), registration.meta)
    if status != 0:
        say(message, text("PyTorch did not take the operator "))
        say(message, registration.namespace)
        say(message, text("::"))
        say(message, registration.schema)
        say(message, text(": there may be one of this name"))
    return status


@torch_entry.export
def register_torch(function: Ptr[Function]) -> i32:
    """Register the operator once. Returns 0, or not 0 after keeping a message."""
    message = local(Text)
    memory = local(u8, ROOM)
    registration = Ptr[Registration](function.torch)
    begin(message, memory, ROOM)
    if registration.registered != 0:
        return 0
    status = try_register(function, message)
    if status != 0:
        keep(message)
    else:
        registration.registered = 1
    return status


# --- calls -----------------------------------------------------------------------------------------------------------


@native
def name_input(function: Ptr[Function], operator: Ptr[Operator], number: i64, message: Ptr[Text]) -> None:
    """Begin a message with the parameter of an input."""
    for place in range(operator.parameters):
        source = operator.sources[place]
        if source.kind == INPUT and source.index == number:
            name_argument(function, function.full_names, place, message)


@native
def explain_writing(first: i64, state: Ptr[State], message: Ptr[Text]) -> None:
    """Say why one of the tensors from `first` on cannot be written to."""
    for place in range(first, state.tensors):
        handle = state.handles[place]
        tensor = ref(state.read)[place]
        if not reader.may_write(handle, tensor):
            if reader.is_repeated(tensor):
                say(message, text(reader.REPEATED))
            elif torch.place.is_inference(handle):
                say(message, text(reader.INFERENCE))
            else:
                say(message, text(reader.WITH_GRADIENT))
            say(message, text("; kiln.export(..., mutates=) says what is written to"))
            return


@native
def read(
    function: Ptr[Function],
    operator: Ptr[Operator],
    stack: Ptr[u64],
    without_memory: i32,
    state: Ptr[State],
    message: Ptr[Text],
) -> bool:
    """Read the inputs and make the outputs; False with a message."""
    reader.begin(state)
    state.without_memory = without_memory
    for number in range(operator.inputs):
        first = state.tensors
        if not reader.read_argument(operator, stack, number, state):
            name_input(function, operator, number, message)
            say(message, text(_UNREADABLE))
            return False
        if without_memory == 0 and not reader.note_written(operator, number, first, state):
            name_input(function, operator, number, message)
            explain_writing(first, state, message)
            return False
    created = reader.make_outputs(operator, operator.outputs[0], state, True)
    if created < operator.output_count:
        reader.drop_results(state, created)
        say(message, function.signature)
        say(message, text(": PyTorch cannot make the output "))
        say_integer(message, created)
        return False
    return True


@native
def run(function: Ptr[Function], operator: Ptr[Operator], state: Ptr[State], message: Ptr[Text]) -> bool:
    """Call the function on what was read; False with a message."""
    header = function.full_plan
    caller = local(Caller)
    arguments = local(Argument, header.count + 1)
    slots = Ptr(local(u8, header.slots_bytes))
    assign(caller, stream=0, asks=0, enters=1)
    table = torch.place
    if state.device != i32(table.cpu) and table.stream != None:
        table.stream(state.device_number, ref(caller).stream)
    for number in range(operator.parameters):
        source = operator.sources[number]
        argument = arguments + number
        assign(argument, length=0, type=NONE, value=0)
        if source.kind == INPUT:
            passed = state.arguments[source.index]
            assign(argument, type=passed.type, value=passed.value)
        elif source.kind == OUTPUT:
            if not reader.read_tensor(state.results[source.index], state, argument):
                say(message, text("an output cannot be read"))
                return False
        elif source.kind == STREAM:
            assign(argument, type=OPAQUE, value=caller.stream)
    reader.raise_versions(state)
    return perform(function, arguments, slots, caller, message) == 0


@native
def make_alike(registration: Ptr[Registration], stack: Ptr[u64], state: Ptr[State]) -> bool:
    """Make outputs by PyTorch's own `empty_like`, which knows symbolic shapes, if all are like inputs of their type."""
    operator = ref(registration).operator
    table = torch.place
    dtype = local(i32)
    for number in range(operator.output_count):
        output = ref(registration.outputs)[number]
        if output.rank >= 0 or table.dtype(stack[output.like], dtype) != 0:
            return False
        if i64(dtype[0]) != output.dtype:
            return False
    for number in range(operator.output_count):
        passed = local(u64, 6)  # the tensor; type, layout, device, pinning and format are its own
        for place in range(6):
            passed[place] = 0
        table.new_handle(stack[registration.outputs[number].like], passed)
        if table.call(text("aten::empty_like"), text(""), passed) != 0:
            reader.drop_results(state, number)
            return False
        state.results[number] = passed[0]
    return True


@torch_entry.export
def call_by_torch(function: Ptr[Function], stack: Ptr[u64], runs: i32) -> Ptr:
    """Take a call; without `runs` only make outputs. Returns null, or the text of an error."""
    message = local(Text)
    memory = local(u8, ROOM)
    state = local(State)
    begin(message, memory, ROOM)
    registration = Ptr[Registration](function.torch)
    operator = ref(registration).operator
    if runs == 0 and make_alike(registration, stack, state):
        reader.finish(operator, stack, state, True)
        return None
    if not read(function, operator, stack, 1 - runs, state, message):
        reader.drop_inputs(operator, stack)
        return keep(message)
    good = runs == 0 or run(function, operator, state, message)
    reader.finish(operator, stack, state, good)
    if good:
        return None
    return keep(message)


@torch_entry.export
def raise_in_torch(words: Ptr) -> None:
    """Raise an error, if there is one. It is called last, so that no frame of native code is unwound."""
    if words != None:
        torch.place.check(False, text("kiln"), text("kiln"), i32(0), words)
