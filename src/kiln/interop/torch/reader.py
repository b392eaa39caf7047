# pyright: reportReturnType=false
"""Calls by the convention of PyTorch's stable C interface: `void kernel(uint64_t *stack, uint64_t inputs, uint64_t outputs)`.

A kernel is given nothing that tells its operator, so there is a kernel for each: they are made in advance. The dispatcher calls without the GIL,
which is taken to look at guards. Tensors on the stack are owned by the kernel. Results take the place of the arguments. What no plan foresees is
left to a Python operator with the same arguments after another one, the place for the text of an error: nothing is raised through the dispatcher,
which would print it.
"""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, address, i32, i64, local, native, ref, struct, text, u32, u64
from ..arguments import plan
from ..arguments.arrays import DLTensor
from ..arguments.cpython import (
    Object,
    Py_DecRef,
    PyErr_Clear,
    PyGILState_Ensure,
    PyGILState_Release,
    PyLong_FromUnsignedLongLong,
    PyTuple_GetItem,
)
from ..arguments.cpython import leave as call_python
from ..arguments.plan import Candidates, Plan
from ..arguments.planned_calls import following, guards_hold
from ..arguments.process import at, world
from ..tvm_ffi.reader import ARRAY, BOOL, DL_TENSOR, FLOAT, INT, NONE, Argument, ArrayObject, take

OPERATORS, INPUTS, OUTPUTS, PARAMETERS, TENSORS, LISTS, RANK, CANDIDATES = 128, 24, 8, 33, 32, 4, 8, 8
"""The most of each."""


@struct
class Torch:
    """What is known of PyTorch in this process: functions of its C interface, and its numbers of devices and element types."""

    data: Fn[[u64, Ptr[u64]], i32]
    rank: Fn[[u64, Ptr[i64]], i32]
    sizes: Fn[[u64, Ptr[Ptr[i64]]], i32]
    strides: Fn[[u64, Ptr[Ptr[i64]]], i32]
    dtype: Fn[[u64, Ptr[i32]], i32]
    device: Fn[[u64, Ptr[i32]], i32]
    device_number: Fn[[u64, Ptr[i32]], i32]
    empty: Fn[[i64, Ptr[i64], Ptr[i64], i32, i32, i32, Ptr[u64]], i32]
    delete_tensor: Fn[[u64], i32]
    list_size: Fn[[u64, Ptr[u64]], i32]
    list_item: Fn[[u64, u64, Ptr[u64]], i32]
    delete_list: Fn[[u64], i32]
    delete_box: Fn[[u64], i32]
    call: Fn[[Ptr, Ptr, Ptr[u64]], i32]
    check: Fn[[bool, Ptr, Ptr, i32, Ptr], None]
    stream: Fn[[i32, Ptr[u64]], i32]
    """Null in builds without CUDA."""
    current_device: Fn[[Ptr[i32]], i32]
    share: Fn[[u64, Ptr[u64]], i32]
    """Makes another handle of a tensor."""
    bump: Fn[[u64], None]
    """torch::autograd::impl::bump_version: raises the version of a tensor, by which autograd finds out that what it saved was changed."""
    is_inference: Fn[[u64], bool]
    """at::native::is_inference"""
    in_inference: Fn[[], bool]
    """c10::InferenceMode::is_enabled"""
    grad_enabled: Fn[[], bool]
    """c10::GradMode::is_enabled"""
    requires_grad: Fn[[Ptr], bool]
    """c10::TensorImpl::requires_grad: of the record that a handle leads to."""
    cpu: i64
    cuda: i64
    several: i64
    """Whether there is more than one device of CUDA."""
    types: Array[u32, 64]
    """DLPack's types by torch's."""


WRITING = {
    "bump": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    "is_inference": "_ZN2at6native12is_inferenceERKNS_6TensorE", "in_inference": "_ZN3c1013InferenceMode10is_enabledEv",
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv", "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
}  # fmt: skip
"""What operators need that write to their inputs, by fields of `Torch`: functions of C++, which PyTorch exports."""
REPEATED = (
    "it shows one element at several coordinates, as expand() makes it, and the kernel writes to it: clone() it before"
)
INFERENCE = "it is a tensor of inference mode, and the kernel writes to it outside of that mode: clone() it before"
WITH_GRADIENT = "it requires a gradient, and the kernel writes to it in place: call it under torch.no_grad(), or on what detach() gives"
"""Why a tensor is not written to."""

TENSOR, MAYBE_TENSOR, SOME_TENSORS, WHOLE, REAL, TRUTH = range(6)
"""Kinds of arguments."""
INPUT, OUTPUT, STREAM = range(3)
"""Where a parameter's value comes from."""


@struct
class Source:
    kind: i64
    index: i64


@struct
class Extent:
    """An extent of a tensor, or (axis -1) a number, of the arguments; without an input, this number itself."""

    input: i64
    axis: i64


@struct
class Output:
    like: i64
    """The input whose extents and strides it has, if it has no rank of its own."""
    rank: i64
    """-1: as the input; else it is compact."""
    dtype: i64
    type: Ptr[Object]
    """The same, as Python has it."""
    extents: Array[Extent, RANK]


@struct
class Layout:
    rank: i64
    shape: Ptr[i64]
    strides: Ptr[i64]
    numbers: Array[i64, 2 * RANK]


@struct
class Operator:
    function: Ptr[Object]
    """The jit function."""
    held: Ptr[Object]
    """What its slot `for_caller` holds, if that is what `outputs` was made for; kept alive."""
    name: Ptr
    """Of the operator that is Python's."""
    report: Ptr[Object]
    """Takes a plan's report and what compiled code returned, and gives the text of an error, as bytes that it keeps, or None."""
    inputs: i64
    made: i64
    """Outputs."""
    parameters: i64
    written: u64
    """A bit for each input that the kernel writes to."""
    kinds: Array[i64, INPUTS]
    sources: Array[Source, PARAMETERS]
    outputs: Array[Ptr[Output], CANDIDATES]
    """Of each candidate; null where only Python can make them."""


@struct
class State:
    """What was read of a call."""

    tensors: i64
    lists: i64
    device: i32
    """Of all tensors; -1: none was seen."""
    device_number: i32
    without_memory: i32
    """1: only shapes are asked for; fake tensors have no more."""
    stream: u64
    arguments: Array[Argument, INPUTS]
    read: Array[DLTensor, TENSORS]
    handles: Array[u64, TENSORS]
    """As many as there are tensors, as PyTorch knows them."""
    written: u64
    """A bit for each tensor that the kernel writes to."""
    elements: Array[Argument, TENSORS]
    groups: Array[ArrayObject, LISTS]
    results: Array[u64, OUTPUTS]


doors = Library("torch", prefix="kiln_")
torch = doors.variable("torch", Torch)
operators = doors.variable("torch_operators", Array[Operator, OPERATORS])
seen = doors.variable("torch_seen", Array[u64, 8])


@native
def read_tensor(handle: u64, state: Ptr[State], argument: Ptr[Argument]) -> bool:
    """Read a tensor, whose device has to be that of the others."""
    count, known = state.tensors, torch.place
    if count == TENSORS:
        return False
    tensor, rank, dtype, device, number = state.read[count], local(i64), local(i32), local(i32), local(i32)
    tensor.data = 0
    good = state.without_memory != 0 or known.data(handle, ref(tensor).data) == 0
    good = good and known.rank(handle, rank) == 0
    good = good and known.sizes(handle, ref(tensor).shape) == 0 and known.strides(handle, ref(tensor).strides) == 0
    good = good and known.dtype(handle, dtype) == 0 and known.device(handle, device) == 0
    good = good and known.device_number(handle, number) == 0
    if not good or u32(dtype[0]) >= 64:
        return False
    if state.device < 0:
        state.device = device[0]
        state.device_number = number[0]
    if state.device != device[0] or state.device_number != number[0]:
        return False
    tensor.rank = i32(rank[0])
    tensor.type = known.types[i64(dtype[0])]
    tensor.device = u32(plan.CPU) if device[0] == i32(known.cpu) else u32(plan.CUDA)
    tensor.device_number = u32(number[0])
    tensor.offset = 0
    argument.type = DL_TENSOR
    argument.value = address(tensor)
    state.handles[count] = handle
    state.tensors = count + 1
    return True


@native
def read_list(handle: u64, state: Ptr[State], argument: Ptr[Argument]) -> bool:
    size, item, known = local(u64), local(u64), torch.place
    if state.lists == LISTS or known.list_size(handle, size) != 0:
        return False
    first, count = state.tensors, i64(size[0])
    if first + count > TENSORS:
        return False
    group = state.groups[state.lists]
    state.lists += 1
    group.elements = ref(state.elements)[first]
    group.count = count
    for number in range(count):
        if known.list_item(handle, u64(number), item) != 0:
            return False
        if not read_tensor(item[0], state, group.elements + number):
            return False
    argument.type = ARRAY
    argument.value = address(group)
    return True


@native
def begin(state: Ptr[State]) -> None:
    state.without_memory = 0
    state.written = 0
    state.tensors = 0
    state.lists = 0
    state.device = -1


@native
def read_argument(operator: Ptr[Operator], stack: Ptr[u64], number: i64, state: Ptr[State]) -> bool:
    """Read an argument."""
    kind, value, argument = operator.kinds[number], stack[number], ref(state.arguments)[number]
    argument.length = 0
    argument.value = value
    if kind == TENSOR:
        return read_tensor(value, state, argument)
    if kind == MAYBE_TENSOR:
        argument.type = NONE
        return value == 0 or read_tensor(Ptr[u64](value)[0], state, argument)
    if kind == SOME_TENSORS:
        return read_list(value, state, argument)
    if kind == TRUTH:
        argument.type = BOOL
        argument.value = value & 0xFF
    else:
        argument.type = i32(INT) if kind == WHOLE else i32(FLOAT)
    return True


@native
def read(operator: Ptr[Operator], stack: Ptr[u64], state: Ptr[State]) -> bool:
    """Read all arguments."""
    begin(state)
    for number in range(operator.inputs):
        first = state.tensors
        if not read_argument(operator, stack, number, state):
            return False
        if not note_written(operator, number, first, state):
            return False
    return state.device >= 0


@native
def is_repeated(tensor: Ptr[DLTensor]) -> bool:
    """Whether an element is seen at several coordinates, as `expand` makes it."""
    repeated = False
    for mode in range(i64(tensor.rank)):
        if tensor.shape[mode] == 0:
            return False
        repeated = repeated or (tensor.shape[mode] > 1 and tensor.strides[mode] == 0)
    return repeated


@native
def may_write(handle: u64, tensor: Ptr[DLTensor]) -> bool:
    """Whether a tensor can be written to in place, as PyTorch has it; `operators.refuse_writing` says why not."""
    known = torch.place
    if is_repeated(tensor):
        return False
    if known.is_inference(handle) and not known.in_inference():
        return False
    return not known.grad_enabled() or not known.requires_grad(Ptr(Ptr[u64](handle)[0]))


@native
def note_written(operator: Ptr[Operator], number: i64, first: i64, state: Ptr[State]) -> bool:
    """After an input was read, whose tensors begin at `first`: whether they can be written to, if the kernel does that."""
    if (operator.written >> u64(number)) & 1 == 0:
        return True
    for place in range(first, state.tensors):
        if not may_write(state.handles[place], ref(state.read)[place]):
            return False
        state.written |= u64(1) << u64(place)
    return True


@native
def raise_versions(state: Ptr[State]) -> None:
    """Let autograd know what is written to now."""
    for place in range(state.tensors):
        if (state.written >> u64(place)) & 1 != 0:
            torch.place.bump(state.handles[place])


@native
def on_its_stream(state: Ptr[State]) -> bool:
    """Find the stream; whether the device of the tensors is the current one."""
    known, current = torch.place, local(i32)
    state.stream = 0
    if state.device == i32(known.cpu):
        return True
    if state.device != i32(known.cuda) or known.stream == None:
        return False
    if known.several != 0:
        if known.current_device(current) != 0 or current[0] != state.device_number:
            return False
    return known.stream(state.device_number, ref(state).stream) == 0


@native
def take_inputs(operator: Ptr[Operator], header: Ptr[Plan], state: Ptr[State], slots: Ptr) -> bool:
    """Whether the arguments and the stream are as the plan says; their slots are filled."""
    record = header.records
    if header.record_count != operator.parameters:
        return False
    for number in range(operator.parameters):
        source = operator.sources[number]
        if source.kind == INPUT:
            if not take(record, ref(state.arguments)[source.index], slots):
                return False
        elif source.kind == STREAM:
            if record.kind != plan.STREAM:
                return False
            Ptr[u64](slots + record.slot)[0] = state.stream
        record = following(record)
    return True


@native
def is_dense(tensor: Ptr[DLTensor]) -> bool:
    """Whether the elements lie without gaps and none twice, in any order of the modes: a tensor like it has its strides."""
    rank, step, left = i64(tensor.rank), i64(1), u64(0)
    for mode in range(rank):
        if tensor.shape[mode] != 1:
            left += 1
    while left > 0:
        found = i64(-1)
        for mode in range(rank):
            if tensor.shape[mode] != 1 and tensor.strides[mode] == step:
                found = mode
        if found < 0:
            return False
        step *= tensor.shape[found]
        left -= 1
    return True


@native
def find_layout(output: Ptr[Output], state: Ptr[State], layout: Ptr[Layout]) -> bool:
    """Find extents and strides of an output; False where only Python knows how."""
    rank, step = output.rank, i64(1)
    if rank < 0:
        argument = state.arguments[output.like]
        like = Ptr[DLTensor](Ptr(argument.value))
        if argument.type != DL_TENSOR or not is_dense(like):
            return False
        layout.rank = i64(like.rank)
        layout.shape = like.shape
        layout.strides = like.strides
        return True
    shape = ref(layout.numbers)[0]
    strides = shape + RANK
    for number in range(rank):
        mode = rank - 1 - number
        extent = output.extents[mode]
        shape[mode] = extent.axis
        if extent.input >= 0:
            source = state.arguments[extent.input]
            if source.type == DL_TENSOR:
                shape[mode] = Ptr[DLTensor](Ptr(source.value)).shape[extent.axis]
            elif source.type == INT and extent.axis < 0:
                shape[mode] = i64(source.value)
            else:
                return False
        strides[mode] = step
        step *= shape[mode]
    layout.rank = rank
    layout.shape = shape
    layout.strides = strides
    return True


@native
def make_output(output: Ptr[Output], state: Ptr[State], result: Ptr[u64]) -> bool:
    """Make an output."""
    layout = local(Layout)
    if not find_layout(output, state, layout):
        return False
    return make(layout.rank, layout.shape, layout.strides, i32(output.dtype), state, result)


@native
def make(rank: i64, shape: Ptr[i64], strides: Ptr[i64], dtype: i32, state: Ptr[State], result: Ptr[u64]) -> bool:
    return torch.place.empty(rank, shape, strides, dtype, state.device, state.device_number, result) == 0


@native
def make_outputs(operator: Ptr[Operator], outputs: Ptr[Output], state: Ptr[State]) -> i64:
    """How many were made; the tensors are in `results`."""
    made = i64(0)
    while made < operator.made:
        if not make_output(outputs + made, state, ref(state.results)[made]):
            break
        made += 1
    return made


@native
def take_outputs(operator: Ptr[Operator], header: Ptr[Plan], state: Ptr[State], slots: Ptr) -> bool:
    """Whether the outputs are as the plan says; their slots are filled."""
    record = header.records
    for number in range(operator.parameters):
        source = operator.sources[number]
        if source.kind == OUTPUT:
            argument = local(Argument)
            if not read_tensor(state.results[source.index], state, argument):
                return False
            if not take(record, argument, slots):
                return False
        record = following(record)
    return True


@native
def drop_inputs(operator: Ptr[Operator], stack: Ptr[u64]) -> None:
    known, size, item = torch.place, local(u64), local(u64)
    for number in range(operator.inputs):
        kind, value = operator.kinds[number], stack[number]
        if kind == TENSOR:
            known.delete_tensor(value)
        elif kind == MAYBE_TENSOR and value != 0:
            known.delete_tensor(Ptr[u64](value)[0])
            known.delete_box(value)
        elif kind == SOME_TENSORS:
            known.list_size(value, size)
            for element in range(i64(size[0])):
                known.list_item(value, u64(element), item)
                known.delete_tensor(item[0])
            known.delete_list(value)


@native
def drop_results(state: Ptr[State], count: i64) -> None:
    for number in range(count):
        torch.place.delete_tensor(state.results[number])


@native
def find(operator: Ptr[Operator], state: Ptr[State], slots: Ptr, room: u64, outputs: Ptr[Ptr[Output]]) -> Ptr[Plan]:
    """A plan for a call, whose arguments are in the slots then; null: none. The GIL is held."""
    held = at(operator.function, world.place.jit.slot)
    if held == None or held != operator.held:
        return None
    candidates = Ptr[Candidates](Ptr(PyTuple_GetItem(held, 0)) + plan.BYTES_DATA)
    if not guards_hold(candidates.guards):
        return None
    for number in range(candidates.count):
        header = candidates.plans[number]
        if number < CANDIDATES and header.slots_bytes <= room:
            outputs[0] = operator.outputs[number]
            if outputs[0] != None and header.result & 0xFF == plan.NO_RESULT:
                if guards_hold(header.guards):
                    if take_inputs(operator, header, state, slots):
                        return header
    return None


SLOTS = 2048
"""Bytes; what takes more is Python's."""


@native
def run(operator: Ptr[Operator], stack: Ptr[u64], failed: Ptr[Ptr]) -> bool:
    """Whether a plan served the call: results are on the stack, or the text of an error is in `failed`."""
    state, slots, outputs = local(State), Ptr(local(u64, SLOTS // 8)), local(Ptr[Output])
    if operator.held == None or not read(operator, stack, state):
        return False
    if not on_its_stream(state):
        return False
    gil = PyGILState_Ensure()
    header = find(operator, state, slots, u64(SLOTS), outputs)
    PyGILState_Release(gil)
    if header == None:
        return False
    made = make_outputs(operator, outputs[0], state)
    if made < operator.made or not take_outputs(operator, header, state, slots):
        drop_results(state, made)
        return False
    raise_versions(state)
    record = header.entry(slots)
    if record != None:
        failed[0] = told(operator, header, record)
    drop_inputs(operator, stack)
    if failed[0] != None:
        drop_results(state, made)
        return True
    for number in range(made):
        stack[number] = state.results[number]
    return True


@native
def told(operator: Ptr[Operator], header: Ptr[Plan], record: Ptr) -> Ptr:
    """The text of the error that compiled code reported; null if it was none."""
    gil, found, given = PyGILState_Ensure(), Ptr(None), local(Ptr[Object])
    number = PyLong_FromUnsignedLongLong(address(record))
    given[0] = number
    letters = call_python(operator.report, Ptr[Object](header.report), given, 1, None)
    if letters == None:
        PyErr_Clear()
        found = Ptr(text("the call failed, and Python could not say how"))
    elif letters != world.place.none:
        found = Ptr(letters) + plan.BYTES_DATA
    Py_DecRef(letters)  # Python keeps it
    Py_DecRef(number)
    PyGILState_Release(gil)
    return found


@native
def call(operator: Ptr[Operator], stack: Ptr[u64]) -> None:
    """Take a call. What it raises passes through this frame."""
    failed = local(Ptr)
    failed[0] = None
    if not run(operator, stack, failed):
        given, inputs, made = local(u64, INPUTS + OUTPUTS + 1), operator.inputs, operator.made
        given[0] = address(failed)
        for number in range(inputs):
            given[number + 1] = stack[number]
        status = torch.place.call(operator.name, text(""), given)
        if status != 0:
            failed[0] = Ptr(text("the call failed in PyTorch's dispatcher"))
        if failed[0] == None:
            for number in range(made):
                stack[number] = given[number]
        elif status == 0:
            for number in range(made):
                torch.place.delete_tensor(given[number])
    if failed[0] != None:
        torch.place.check(False, text("kiln"), text("kiln"), i32(0), failed[0])


@doors.export
def torch_probe(stack: Ptr[u64], inputs: u64, outputs: u64) -> None:
    """Notes what it was called with, and returns its first argument."""
    ref(seen.place)[0][0] = inputs
    ref(seen.place)[1][0] = outputs
    for number in range(i64(inputs)):
        if number < 6:
            ref(seen.place)[number + 2][0] = stack[number]


def _kernel(number: int):
    """The kernel of an operator."""

    def kernel(stack: Ptr[u64], inputs: u64, outputs: u64) -> None:
        call(ref(operators.place)[number], stack)

    kernel.__name__ = f"torch_{number}"
    return doors.export(kernel)


kernels = [_kernel(number) for number in range(OPERATORS)]
