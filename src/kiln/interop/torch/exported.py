# pyright: reportReturnType=false
"""An exported function as an operator of PyTorch: it registers itself where a library is loaded into a process that has PyTorch.

All functions of PyTorch are looked for then, so nothing of it is needed to link or to load the file. Arguments are read, and outputs made, by the code
that operators of this process have for it (`calls/caller/torch.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...native import Fn, Library, Ptr, address, extern, i32, i64, local, native, ref, struct, text, u8, u32, u64
from ...targets.host.libc import dlopen, dlsym, find_all
from ...targets.host.texts import Text, begin
from ..arguments import plan
from ..arguments.arrays import DLTensor
from ..c.entry import ROOM, Function, keep, name_argument, say, say_integer
from ..tvm_ffi.exported_arguments import Caller, perform
from ..tvm_ffi.reader import DL_TENSOR, NONE, OPAQUE, Argument
from . import reader as caller_torch
from .reader import (
    INFERENCE,
    INPUT,
    OUTPUT,
    REPEATED,
    WITH_GRADIENT,
    Operator,
    Output,
    State,
    drop_inputs,
    drop_results,
    is_repeated,
    make,
    make_output,
    may_write,
    note_written,
    raise_versions,
    read_argument,
    read_tensor,
    torch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTIONS = {
    "data": "aoti_torch_get_data_ptr", "rank": "aoti_torch_get_dim", "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides", "dtype": "aoti_torch_get_dtype", "device": "aoti_torch_get_device_type",
    "device_number": "aoti_torch_get_device_index", "empty": "aoti_torch_empty_strided",
    "delete_tensor": "aoti_torch_delete_tensor_object", "list_size": "torch_list_size",
    "list_item": "torch_list_get_item", "delete_list": "torch_delete_list", "check": "aoti_torch_check",
    "call": "aoti_torch_call_dispatcher", "share": "aoti_torch_new_tensor_handle",
}  # fmt: skip
"""By fields of `Torch`."""


def _runs(functions: Mapping[str, str]) -> dict[int, str]:
    """By offsets: the names of those that follow one another."""
    runs: dict[int, str] = {}
    for offset, name in sorted((getattr(caller_torch.Torch, field).offset, name) for field, name in functions.items()):
        first = next((first for first, names in runs.items() if first + 8 * names.count("\0") == offset), offset)
        runs[first] = f"{runs.get(first, '')}{name}\0"
    return runs


RUNS = _runs(FUNCTIONS)
WRITING_RUNS = _runs(caller_torch.WRITING)
ON_HOST, ON_GPU = 1, 2
VERSION = 2 << 56 | 10 << 48
"""Of PyTorch's interface that kernels are written for."""
_NOW, _THERE, _STAYS = 2, 4, 0x1000
"""Of dlopen: resolve all, only if it is loaded already, never unload."""


@struct
class ElementType:
    name: Ptr
    """Of the function that tells torch's number; in later versions without what it begins with, "aoti_"."""
    dlpack: i64


@struct
class TorchDoor:
    """What PyTorch is told of a function."""

    namespace: Ptr
    name: Ptr
    schema: Ptr
    kernel: Ptr
    meta: Ptr
    """Makes outputs alone, for tensors without memory."""
    devices: i64
    types: Ptr[ElementType]
    type_count: i64
    outputs: Ptr[Output]
    """Their types are DLPack's until the operator is registered."""
    registered: i64
    operator: Operator


@struct
class AddressInfo:
    """What dladdr tells: the file first."""

    file: Ptr
    base: Ptr
    name: Ptr
    place: Ptr


torch_entry = Library("aot_torch", prefix="kiln_aot_", passes=1, opt=1, small=True)


@extern
def dladdr(place: Ptr, found: Ptr) -> i32: ...


# --- registering -----------------------------------------------------------------------------------------------------


@native
def find_torch(door: Ptr[TorchDoor], library: Ptr) -> Ptr:
    """Find what the kernel calls: null, or the name of what PyTorch lacks."""
    known = torch.place
    for first, names in RUNS.items():
        missing = find_all(library, text(names), Ptr[u64](Ptr(known) + first))
        if missing != None:
            return missing
    for first, names in WRITING_RUNS.items():
        missing = find_all(library, text(names), Ptr[u64](Ptr(known) + first))
        if missing != None and door.operator.written != 0:
            return missing
    box = dlsym(library, text("torch_delete_stable_ivalue"))
    if box == None:
        box = dlsym(None, text("_ZdlPv"))
    Ptr[u64](ref(known).delete_box)[0] = address(box)
    cuda = dlopen(text("libtorch_cuda.so"), _NOW | _THERE)
    stream = dlsym(cuda if cuda != None else library, text("aoti_torch_get_current_cuda_stream"))
    Ptr[u64](ref(known).stream)[0] = address(stream)
    known.cpu = i64(Fn[[], i32](dlsym(library, text("aoti_torch_device_type_cpu")))())
    known.cuda = i64(Fn[[], i32](dlsym(library, text("aoti_torch_device_type_cuda")))())
    for number in range(door.type_count):
        each = ref(door.types)[number]
        tell = dlsym(library, each.name)
        if tell == None:
            tell = dlsym(library, each.name + 5)
        if tell != None:
            known.types[i64(Fn[[], i32](tell)()) & 63] = u32(each.dlpack)
    for number in range(door.operator.made):
        output = ref(door.outputs)[number]
        for kind in range(64):
            if i64(known.types[kind]) == output.dtype:
                output.dtype = kind
                break
    return None


@native
def add_kernel(door: Ptr[TorchDoor], library: Ptr, key: Ptr, kernel: Ptr) -> i32:
    handle, begin_, add = (
        local(Ptr),
        dlsym(library, text("aoti_torch_library_init_impl")),
        dlsym(library, text("torch_library_impl")),
    )
    handle[0] = None
    status = Fn[[Ptr, Ptr, Ptr, u32, Ptr], i32](begin_)(door.namespace, key, text("kiln"), 0, handle)
    return status if status != 0 else Fn[[Ptr, Ptr, Ptr, u64], i32](add)(handle[0], door.name, kernel, VERSION)


@native
def define(door: Ptr[TorchDoor], library: Ptr) -> i32:
    """Make the operator known; where torch can be told (2.12), with what `torch.compile` may rely on."""
    handle, begin_ = local(Ptr), dlsym(library, text("aoti_torch_library_init_fragment"))
    handle[0] = None
    status = Fn[[Ptr, Ptr, u32, Ptr], i32](begin_)(door.namespace, text("kiln"), 0, handle)
    if status != 0:
        return status
    with_tags = dlsym(library, text("torch_library_def_with_tags"))
    compliant, exact = (
        dlsym(library, text("torch_tag_pt2_compliant_tag")),
        dlsym(library, text("torch_tag_needs_exact_strides")),
    )
    if with_tags == None or compliant == None or exact == None:
        return Fn[[Ptr, Ptr], i32](dlsym(library, text("aoti_torch_library_def")))(handle[0], door.schema)
    tags = local(i32, 2)
    tags[0] = Fn[[], i32](compliant)()
    tags[1] = Fn[[], i32](exact)()
    return Fn[[Ptr, Ptr, Ptr, i32], i32](with_tags)(handle[0], door.schema, tags, 2)


@native
def try_register(function: Ptr[Function], said: Ptr[Text]) -> i32:
    library, door, about = (
        dlopen(text("libtorch_cpu.so"), _NOW | _THERE),
        Ptr[TorchDoor](function.torch),
        local(AddressInfo),
    )
    if dlsym(library, text("aoti_torch_library_init_fragment")) == None:
        say(said, text("PyTorch is not loaded"))
        return -1
    if dlsym(library, text("torch_library_impl")) == None:
        say(said, text("PyTorch is older than 2.10"))
        return -1
    missing = find_torch(door, library)
    if missing != None:
        say(said, text("PyTorch lacks "))
        say(said, missing)
        return -1
    door.operator.outputs[0] = door.outputs
    if dladdr(function, about) != 0:
        dlopen(about.file, _NOW | _THERE | _STAYS)  # PyTorch keeps the kernels
    status = define(door, library)
    if status == 0 and door.devices & ON_HOST != 0:
        status = add_kernel(door, library, text("CPU"), door.kernel)
    if status == 0 and door.devices & ON_GPU != 0:
        status = add_kernel(door, library, text("CUDA"), door.kernel)
    if status == 0:
        status = add_kernel(door, library, text("Meta"), door.meta)
    if status != 0:
        say(said, text("PyTorch did not take the operator "))
        say(said, door.namespace)
        say(said, text("::"))
        say(said, door.schema)
        say(said, text(": there may be one of this name"))
    return status


@torch_entry.export
def register_torch(function: Ptr[Function]) -> i32:
    """Register the operator, once: 0, or not 0, and what there is to say."""
    said, memory, door = local(Text), local(u8, ROOM), Ptr[TorchDoor](function.torch)
    begin(said, memory, ROOM)
    if door.registered != 0:
        return 0
    status = try_register(function, said)
    if status != 0:
        keep(said)
    else:
        door.registered = 1
    return status


# --- calls -----------------------------------------------------------------------------------------------------------


@native
def name_input(function: Ptr[Function], operator: Ptr[Operator], number: i64, said: Ptr[Text]) -> None:
    for place in range(operator.parameters):
        source = operator.sources[place]
        if source.kind == INPUT and source.index == number:
            name_argument(function, function.full_names, place, said)


@native
def explain_writing(first: i64, state: Ptr[State], said: Ptr[Text]) -> None:
    """Say why one of the tensors from `first` on cannot be written to."""
    known = torch.place
    for place in range(first, state.tensors):
        handle, tensor = state.handles[place], ref(state.read)[place]
        if not may_write(handle, tensor):
            if is_repeated(tensor):
                say(said, text(REPEATED))
            elif known.is_inference(handle):
                say(said, text(INFERENCE))
            else:
                say(said, text(WITH_GRADIENT))
            say(said, text("; kiln.export(..., mutates=) says what is written to"))
            return


@native
def read(
    function: Ptr[Function],
    operator: Ptr[Operator],
    stack: Ptr[u64],
    without_memory: i32,
    state: Ptr[State],
    said: Ptr[Text],
) -> bool:
    """Read the inputs and make the outputs."""
    caller_torch.begin(state)
    state.without_memory = without_memory
    for number in range(operator.inputs):
        first = state.tensors
        if not read_argument(operator, stack, number, state):
            name_input(function, operator, number, said)
            say(
                said,
                text(
                    "it cannot be read: tensors of one call are on one device, of an element type that DLPack has, and no more than 32"
                ),
            )
            return False
        if without_memory == 0 and not note_written(operator, number, first, state):
            name_input(function, operator, number, said)
            explain_writing(first, state, said)
            return False
    made = i64(0)
    while made < operator.made:
        output, place = ref(operator.outputs[0])[made], ref(state.results)[made]
        if not make_output(output, state, place) and not make_row_major(output, state, place):
            drop_results(state, made)
            say(said, function.signature)
            say(said, text(": PyTorch cannot make the output "))
            say_integer(said, made)
            return False
        made += 1
    return True


@native
def make_row_major(output: Ptr[Output], state: Ptr[State], place: Ptr[u64]) -> bool:
    """Make an output like an input that has gaps, or is none; False if it is not to be like one."""
    argument, strides, step = state.arguments[output.like], local(i64, plan.MAX_RANK), i64(1)
    like = Ptr[DLTensor](Ptr(argument.value))
    if output.rank >= 0 or argument.type != DL_TENSOR or i64(like.rank) > plan.MAX_RANK:
        return False
    for number in range(i64(like.rank)):
        mode = i64(like.rank) - 1 - number
        strides[mode] = step
        step *= like.shape[mode] if like.shape[mode] > 1 else i64(1)
    return make(i64(like.rank), like.shape, strides, i32(output.dtype), state, place)


@native
def run(function: Ptr[Function], operator: Ptr[Operator], stack: Ptr[u64], state: Ptr[State], said: Ptr[Text]) -> bool:
    """Call the function on what was read."""
    header, caller = function.full_plan, local(Caller)
    given, slots = local(Argument, header.count + 1), Ptr(local(u8, header.slots_bytes))
    caller.stream = 0
    caller.asks = 0
    caller.enters = 1
    known = torch.place
    if state.device != i32(known.cpu) and known.stream != None:
        known.stream(state.device_number, ref(caller).stream)
    for number in range(operator.parameters):
        source, argument = operator.sources[number], given + number
        argument.length = 0
        argument.type = NONE
        argument.value = 0
        if source.kind == INPUT:
            read_one = ref(state.arguments)[source.index]
            argument.type = read_one.type
            argument.value = read_one.value
        elif source.kind == OUTPUT:
            if not read_tensor(state.results[source.index], state, argument):
                say(said, text("an output cannot be read"))
                return False
        elif source.kind == caller_torch.STREAM:
            argument.type = OPAQUE
            argument.value = caller.stream
    raise_versions(state)
    return perform(function, given, slots, caller, said) == 0


@native
def make_alike(door: Ptr[TorchDoor], stack: Ptr[u64], state: Ptr[State]) -> bool:
    """Make outputs like inputs of the same type by PyTorch's own operator, which knows symbolic shapes; False if one of them is another."""
    operator, known, dtype = ref(door).operator, torch.place, local(i32)
    for number in range(operator.made):
        output = ref(door.outputs)[number]
        if output.rank >= 0 or known.dtype(stack[output.like], dtype) != 0:
            return False
        if i64(dtype[0]) != output.dtype:
            return False
    for number in range(operator.made):
        given = local(u64, 6)  # the tensor; type, layout, device, pinning and format as it has them
        for place in range(6):
            given[place] = 0
        known.share(stack[door.outputs[number].like], given)
        if known.call(text("aten::empty_like"), text(""), given) != 0:
            drop_results(state, number)
            return False
        state.results[number] = given[0]
    return True


@native
def leave(operator: Ptr[Operator], stack: Ptr[u64], state: Ptr[State], good: bool) -> None:
    """Give the inputs back; outputs take their place."""
    drop_inputs(operator, stack)
    if not good:
        drop_results(state, operator.made)
    else:
        for number in range(operator.made):
            stack[number] = state.results[number]


@torch_entry.export
def call_by_torch(function: Ptr[Function], stack: Ptr[u64], runs: i32) -> Ptr:
    """Take a call: null, or the text of an error. Without `runs`, outputs are made and nothing else is done."""
    said, memory, state = local(Text), local(u8, ROOM), local(State)
    begin(said, memory, ROOM)
    door = Ptr[TorchDoor](function.torch)
    operator = ref(door).operator
    if runs == 0 and make_alike(door, stack, state):
        leave(operator, stack, state, True)
        return None
    if not read(function, operator, stack, 1 - runs, state, said):
        drop_inputs(operator, stack)
        return keep(said)
    good = runs == 0 or run(function, operator, stack, state, said)
    leave(operator, stack, state, good)
    if good:
        return None
    return keep(said)


@torch_entry.export
def raise_in_torch(words: Ptr) -> None:
    """Raise an error, if there is one. The last call of this function and of who calls it, so that no frame of ours is unwound."""
    if words != None:
        torch.place.check(False, text("kiln"), text("kiln"), i32(0), words)
