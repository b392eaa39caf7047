# pyright: reportReturnType=false
"""Reading tensors and making outputs through PyTorch's stable C interface, in this process and in exported objects.

A kernel is called as `void kernel(uint64_t *stack, uint64_t inputs, uint64_t outputs)`: it owns the tensors on the
stack, and results take the place of the arguments. `operator_calls.py` and `direct_calls.py` are the entry points of
this process, `exported.py` those of exported objects.
"""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, address, assign, i32, i64, local, native, ref, struct, u32, u64
from ..arguments import plan
from ..arguments.arrays import DLTensor
from ..arguments.cpython import Object
from ..arguments.torch_layout import BUMP_VERSION
from ..tvm_ffi.reader import ARRAY, BOOL, DL_TENSOR, FLOAT, INT, NONE, Argument, ArrayObject

INPUTS = 24
OUTPUTS = 8
PARAMETERS = 33
TENSORS = 32
LISTS = 4
RANK = 8
CANDIDATES = 8
"""Limits of one call, of the rank of an output, and of a function's specialisations."""
VERSION = 2 << 56 | 10 << 48
"""The version of PyTorch's stable interface that kernels are written for: 2.10."""


@struct
class Torch:
    """PyTorch in this process: functions of its C interface, and its numbers of devices and element types."""

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
    new_handle: Fn[[u64, Ptr[u64]], i32]
    """Makes another handle of a tensor."""
    bump: Fn[[u64], None]
    """Raises the version of a tensor, by which autograd finds that a saved tensor was changed."""
    is_inference: Fn[[u64], bool]
    in_inference: Fn[[], bool]
    grad_enabled: Fn[[], bool]
    requires_grad: Fn[[Ptr], bool]
    """Takes the TensorImpl that a handle points to."""
    cpu: i64
    cuda: i64
    several: i64
    """Whether there is more than one CUDA device."""
    types: Array[u32, 64]
    """DLPack's types by torch's numbers."""


FUNCTIONS = {
    "data": "aoti_torch_get_data_ptr",
    "rank": "aoti_torch_get_dim",
    "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides",
    "dtype": "aoti_torch_get_dtype",
    "device": "aoti_torch_get_device_type",
    "device_number": "aoti_torch_get_device_index",
    "empty": "aoti_torch_empty_strided",
    "delete_tensor": "aoti_torch_delete_tensor_object",
    "list_size": "torch_list_size",
    "list_item": "torch_list_get_item",
    "delete_list": "torch_delete_list",
    "call": "aoti_torch_call_dispatcher",
    "check": "aoti_torch_check",
    "current_device": "aoti_torch_get_current_device_index",
    "new_handle": "aoti_torch_new_tensor_handle",
}
"""Symbols of the stable C interface, by fields of `Torch`."""
WRITING = {
    "bump": BUMP_VERSION,
    "is_inference": "_ZN2at6native12is_inferenceERKNS_6TensorE",
    "in_inference": "_ZN3c1013InferenceMode10is_enabledEv",
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
}
"""C++ symbols that operators need which write to their inputs, by fields of `Torch`."""
REPEATED = (
    "it shows one element at several coordinates, as expand() makes it, and the kernel writes to it: clone() it before"
)
INFERENCE = "it is a tensor of inference mode, and the kernel writes to it outside of that mode: clone() it before"
WITH_GRADIENT = (
    "it requires a gradient, and the kernel writes to it in place: "
    "call it under torch.no_grad(), or on what detach() gives"
)
"""Why a tensor is not written to."""

TENSOR, OPTIONAL_TENSOR, TENSOR_LIST, INTEGER, REAL, TRUTH = range(6)
"""Kinds of arguments."""
KINDS = {
    "Tensor": TENSOR,
    "Tensor?": OPTIONAL_TENSOR,
    "Tensor[]": TENSOR_LIST,
    "SymInt": INTEGER,
    "float": REAL,
    "bool": TRUTH,
}
"""Types of schemas that native code reads."""
INPUT, OUTPUT, STREAM, NOT_PASSED = range(4)
"""Sources of a parameter's value."""


@struct
class Source:
    """The source of a parameter's value: its kind, and the index of the value there."""

    kind: i64
    index: i64


@struct
class Extent:
    """An extent: that of an input's axis, the value of an input (axis -1), or without an input the number `axis`."""

    input: i64
    axis: i64


@struct
class Output:
    """The rule by which an output is made."""

    like: i64
    """The input whose extents and strides it has, if it has no rank of its own."""
    rank: i64
    """-1: like the input; else it is compact."""
    dtype: i64
    type: Ptr[Object]
    """The same type as a Python object."""
    extents: Array[Extent, RANK]


@struct
class Layout:
    """Extents and strides of an output."""

    rank: i64
    shape: Ptr[i64]
    strides: Ptr[i64]
    numbers: Array[i64, 2 * plan.MAX_RANK]


@struct
class Operator:
    """An operator of PyTorch."""

    function: Ptr[Object]
    """The jit function."""
    plans: Ptr[Object]
    """The plans in the function's slot `for_caller` for which `outputs` were made; kept alive."""
    name: Ptr
    """The name of the operator that Python implements."""
    report: Ptr[Object]
    """Takes a plan's report function and what compiled code returned; returns the error's text as bytes, or None."""
    inputs: i64
    output_count: i64
    parameters: i64
    written: u64
    """A bit for each input that the kernel writes to."""
    kinds: Array[i64, INPUTS]
    sources: Array[Source, PARAMETERS]
    outputs: Array[Ptr[Output], CANDIDATES]
    """The outputs of each plan; null where only Python can make them."""


@struct
class State:
    """The arguments of a call, as they were read."""

    tensors: i64
    lists: i64
    device: i32
    """The device of all tensors; -1: none was read."""
    device_number: i32
    without_memory: i32
    """1: only shapes are needed; fake tensors have no memory."""
    stream: u64
    arguments: Array[Argument, INPUTS]
    read: Array[DLTensor, TENSORS]
    handles: Array[u64, TENSORS]
    """PyTorch's handles of the tensors."""
    written: u64
    """A bit for each tensor that the kernel writes to."""
    elements: Array[Argument, TENSORS]
    groups: Array[ArrayObject, LISTS]
    results: Array[u64, OUTPUTS]


operator_library: Library = Library("torch", prefix="kiln_")
torch = operator_library.variable("torch", Torch)


# --- inputs ----------------------------------------------------------------------------------------------------------


@native
def begin(state: Ptr[State]) -> None:
    """Prepare for the arguments of another call."""
    assign(state, without_memory=0, written=0, tensors=0, lists=0, device=-1)


@native
def read_tensor(handle: u64, state: Ptr[State], argument: Ptr[Argument]) -> bool:
    """Read a tensor; False if it is on another device than those before it, or cannot be read."""
    count = state.tensors
    table = torch.place
    if count == TENSORS:
        return False
    tensor = state.read[count]
    rank = local(i64)
    dtype = local(i32)
    device = local(i32)
    number = local(i32)
    tensor.data = 0
    good = state.without_memory != 0 or table.data(handle, ref(tensor).data) == 0
    good = good and table.rank(handle, rank) == 0
    good = good and table.sizes(handle, ref(tensor).shape) == 0 and table.strides(handle, ref(tensor).strides) == 0
    good = good and table.dtype(handle, dtype) == 0 and table.device(handle, device) == 0
    good = good and table.device_number(handle, number) == 0
    if not good or u32(dtype[0]) >= 64:
        return False
    if state.device < 0:
        assign(state, device=device[0], device_number=number[0])
    if state.device != device[0] or state.device_number != number[0]:
        return False
    tensor.rank = i32(rank[0])
    tensor.type = table.types[i64(dtype[0])]
    tensor.device = u32(plan.CPU) if device[0] == i32(table.cpu) else u32(plan.CUDA)
    tensor.device_number = u32(number[0])
    tensor.offset = 0
    assign(argument, type=DL_TENSOR, value=address(tensor))
    state.handles[count] = handle
    state.tensors = count + 1
    return True


@native
def read_list(handle: u64, state: Ptr[State], argument: Ptr[Argument]) -> bool:
    """Read a list of tensors."""
    size = local(u64)
    item = local(u64)
    table = torch.place
    if state.lists == LISTS or table.list_size(handle, size) != 0:
        return False
    first = state.tensors
    count = i64(size[0])
    if first + count > TENSORS:
        return False
    group = state.groups[state.lists]
    state.lists += 1
    assign(group, elements=ref(state.elements)[first], count=count)
    for number in range(count):
        if table.list_item(handle, u64(number), item) != 0:
            return False
        if not read_tensor(item[0], state, group.elements + number):
            return False
    assign(argument, type=ARRAY, value=address(group))
    return True


@native
def read_argument(operator: Ptr[Operator], stack: Ptr[u64], number: i64, state: Ptr[State]) -> bool:
    """Read an argument from the stack."""
    kind = operator.kinds[number]
    value = stack[number]
    argument = ref(state.arguments)[number]
    assign(argument, length=0, value=value)
    if kind == TENSOR:
        return read_tensor(value, state, argument)
    if kind == OPTIONAL_TENSOR:
        argument.type = NONE
        return value == 0 or read_tensor(Ptr[u64](value)[0], state, argument)
    if kind == TENSOR_LIST:
        return read_list(value, state, argument)
    if kind == TRUTH:
        assign(argument, type=BOOL, value=value & 0xFF)
    else:
        argument.type = i32(INT) if kind == INTEGER else i32(FLOAT)
    return True


@native
def is_repeated(tensor: Ptr[DLTensor]) -> bool:
    """Return whether one element appears at several coordinates, as `expand` makes it."""
    repeated = False
    for mode in range(i64(tensor.rank)):
        if tensor.shape[mode] == 0:
            return False
        repeated = repeated or (tensor.shape[mode] > 1 and tensor.strides[mode] == 0)
    return repeated


@native
def may_write(handle: u64, tensor: Ptr[DLTensor]) -> bool:
    """Return whether PyTorch allows writing to a tensor in place; `Operator._refuse_writing` in Python says why not."""
    table = torch.place
    if is_repeated(tensor):
        return False
    if table.is_inference(handle) and not table.in_inference():
        return False
    return not table.grad_enabled() or not table.requires_grad(Ptr(Ptr[u64](handle)[0]))


@native
def note_written(operator: Ptr[Operator], number: i64, first: i64, state: Ptr[State]) -> bool:
    """Mark the tensors of an input, from `first` on, as written if the kernel writes to it; False if it may not."""
    if (operator.written >> u64(number)) & 1 == 0:
        return True
    for place in range(first, state.tensors):
        if not may_write(state.handles[place], ref(state.read)[place]):
            return False
        state.written |= u64(1) << u64(place)
    return True


@native
def raise_versions(state: Ptr[State]) -> None:
    """Tell autograd which tensors are written to."""
    for place in range(state.tensors):
        if (state.written >> u64(place)) & 1 != 0:
            torch.place.bump(state.handles[place])


# --- outputs ---------------------------------------------------------------------------------------------------------


@native
def is_dense(tensor: Ptr[DLTensor]) -> bool:
    """Return whether the elements have no gaps and no overlaps in some order of modes.

    `empty_like` keeps the strides of such a tensor.
    """
    rank = i64(tensor.rank)
    step = i64(1)
    left = u64(0)
    for mode in range(rank):
        if tensor.shape[mode] != 1:
            left += 1
    while left > 0:
        last = i64(-1)
        for mode in range(rank):
            if tensor.shape[mode] != 1 and tensor.strides[mode] == step:
                last = mode
        if last < 0:
            return False
        step *= tensor.shape[last]
        left -= 1
    return True


@native
def find_layout(output: Ptr[Output], state: Ptr[State], layout: Ptr[Layout], compacts: bool) -> bool:
    """Find extents and strides of an output.

    An output like an input with gaps is row-major if `compacts`; otherwise Python makes it.
    """
    rank = output.rank
    step = i64(1)
    shape = ref(layout.numbers)[0]
    strides = shape + plan.MAX_RANK
    like = Ptr[DLTensor](None)
    if rank < 0:
        argument = state.arguments[output.like]
        if argument.type != DL_TENSOR:
            return False
        like = Ptr[DLTensor](Ptr(argument.value))
        rank = i64(like.rank)
        if is_dense(like):
            layout.rank = rank  # one by one: with both loads first, a call takes 0.1 us longer
            layout.shape = like.shape
            layout.strides = like.strides
            return True
        if not compacts or rank > plan.MAX_RANK:
            return False
    for number in range(rank):
        mode = rank - 1 - number
        if like != None:
            shape[mode] = like.shape[mode]
        else:
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
    assign(layout, rank=rank, shape=shape, strides=strides)
    return True


@native
def make_outputs(operator: Ptr[Operator], outputs: Ptr[Output], state: Ptr[State], compacts: bool) -> i64:
    """Make outputs, whose handles are `state.results`. Returns how many could be made."""
    created = i64(0)
    layout = local(Layout)
    while created < operator.output_count:
        output = outputs + created
        result = ref(state.results)[created]
        if not find_layout(output, state, layout, compacts):
            break
        dtype = i32(output.dtype)
        device = state.device
        number = state.device_number
        if torch.place.empty(layout.rank, layout.shape, layout.strides, dtype, device, number, result) != 0:
            break
        created += 1
    return created


@native
def drop_inputs(operator: Ptr[Operator], stack: Ptr[u64]) -> None:
    """Release the arguments on the stack."""
    table = torch.place
    size = local(u64)
    item = local(u64)
    for number in range(operator.inputs):
        kind = operator.kinds[number]
        value = stack[number]
        if kind == TENSOR:
            table.delete_tensor(value)
        elif kind == OPTIONAL_TENSOR and value != 0:
            table.delete_tensor(Ptr[u64](value)[0])
            table.delete_box(value)
        elif kind == TENSOR_LIST:
            table.list_size(value, size)
            for element in range(i64(size[0])):
                table.list_item(value, u64(element), item)
                table.delete_tensor(item[0])
            table.delete_list(value)


@native
def drop_results(state: Ptr[State], count: i64) -> None:
    """Release the first outputs."""
    for number in range(count):
        torch.place.delete_tensor(state.results[number])


@native
def finish(operator: Ptr[Operator], stack: Ptr[u64], state: Ptr[State], good: bool) -> None:
    """Release the inputs; the outputs take their place on the stack, or are released after an error."""
    drop_inputs(operator, stack)
    if not good:
        drop_results(state, operator.output_count)
    else:
        for number in range(operator.output_count):
            stack[number] = state.results[number]
