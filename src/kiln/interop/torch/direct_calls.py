# pyright: reportReturnType=false
"""Calls of operators from Python that bypass PyTorch's dispatcher where it would only call the kernel.

That is so for plain tensors without gradients while nothing intercepts operators: modes, transforms, autocast, tracing,
profiling. Arguments and errors are Python's; the rest is as in `operator_calls.py`.
"""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, address, assign, f64, i32, i64, local, native, ref, struct, u64
from ..arguments import cpython, plan
from ..arguments.cpython import Object
from ..arguments.planned_calls import NO_MATCH
from ..arguments.process import at, process
from ..tvm_ffi.reader import BOOL, FLOAT, INT, NONE
from . import operator_calls, reader
from .operator_calls import SLOTS
from .reader import Operator, Output, State, torch

KEYS = 8
TYPES = 2


@struct
class Direct:
    """PyTorch's tensors and what changes calls, in this process. Functions are those of C++, proved by `probe.py`."""

    types: Array[Ptr[Object], TYPES]
    """The exact types of tensors that it takes."""
    inner: u64
    """Where a Python tensor points to its TensorImpl, and where that has its dispatch keys (`TensorLayout`)."""
    bits: u64
    foreign: u64
    """Dispatch keys that plain tensors do not have."""
    requires_grad: Fn[[Ptr], bool]
    """c10::TensorImpl::requires_grad"""
    grad_enabled: Fn[[], bool]
    """c10::GradMode::is_enabled"""
    included: Fn[[i32], bool]
    """c10::impl::tls_is_dispatch_key_included"""
    excluded: Fn[[u64], bool]
    """c10::impl::tls_is_dispatch_keyset_excluded: whether all of them are."""
    has_callbacks: Fn[[], bool]
    """at::hasCallbacks: whether a profiler is on."""
    has_modes: Fn[[], bool]
    """at::impl::torch_function_mode_enabled"""
    empty_cpu: Ptr[Object]
    empty_cuda: Ptr[Object]
    """Python functions of extents, strides and type that make a tensor on the current device without the dispatcher."""
    looking: Array[i32, KEYS]
    """Dispatch keys that are included while something intercepts operators."""
    keys: i64
    autocast: u64
    """Keys that are excluded while autocast is off."""


@struct
class DirectCall:
    """The holder of a function that calls an operator, a `bytes` object."""

    operator: Ptr[Operator]
    otherwise: Ptr[Object]
    """The Python function for calls that the dispatcher must take."""
    defaults: Array[Ptr[Object], reader.INPUTS]
    """Null for an input without a default."""


direct_library: Library = Library("torch_direct", prefix="kiln_")
direct = direct_library.variable("direct", Direct)


@native
def is_quiet() -> bool:
    """Return whether nothing intercepts operators: modes, transforms, autocast, tracing, profiling."""
    table = direct.place
    for number in range(table.keys):
        if table.included(table.looking[number]):
            return False
    return table.excluded(table.autocast) and not table.has_callbacks() and not table.has_modes()


@native
def is_tensor(value: Ptr[Object]) -> bool:
    """Return whether a value has one of the exact types of tensors."""
    return value.kind == direct.place.types[0] or value.kind == direct.place.types[1]


@native
def is_plain(value: Ptr[Object], with_gradients: bool) -> bool:
    """Return whether a tensor is plain and, if gradients are enabled, requires none."""
    table = direct.place
    record = Ptr(at(value, table.inner))
    if Ptr[u64](record + table.bits)[0] & table.foreign != 0:
        return False
    return not (with_gradients and table.requires_grad(record))


@native
def read(operator: Ptr[Operator], values: Ptr[Ptr[Object]], state: Ptr[State]) -> bool:
    """Read all arguments."""
    reader.begin(state)
    types = process.place
    with_gradients = direct.place.grad_enabled()
    number = local(i64)
    for position in range(operator.inputs):
        kind = operator.kinds[position]
        value = values[position]
        argument = ref(state.arguments)[position]
        first = state.tensors
        assign(argument, length=0, value=0)
        if value == None:
            return False
        if kind == reader.TENSOR or (kind == reader.OPTIONAL_TENSOR and value != types.none):
            if not is_tensor(value) or not is_plain(value, with_gradients):
                return False
            if not reader.read_tensor(address(value) + direct.place.inner, state, argument):
                return False
        elif kind == reader.OPTIONAL_TENSOR:
            argument.type = NONE
        elif kind == reader.TRUTH and value.kind == types.bool_type:
            assign(argument, type=BOOL, value=u64(value == types.true))
        elif kind == reader.INTEGER and value.kind == types.int_type and cpython.whole_number(value, number):
            assign(argument, type=INT, value=u64(number[0]))
        elif kind == reader.REAL and (value.kind == types.float_type or value.kind == types.int_type):
            real = cpython.PyFloat_AsDouble(value)
            if cpython.PyErr_Occurred() != None:
                cpython.PyErr_Clear()
                return False
            argument.type = FLOAT
            Ptr[f64](ref(argument).value)[0] = real
        else:
            return False
        if not reader.note_written(operator, position, first, state):
            return False
    return state.device >= 0


@native
def as_tuple(numbers: Ptr[i64], count: i64) -> Ptr[Object]:
    """Return a Python tuple of numbers."""
    tuple_ = cpython.PyTuple_New(count)
    for number in range(count):
        if tuple_ != None:
            cpython.PyTuple_SetItem(tuple_, number, cpython.PyLong_FromLongLong(numbers[number]))
    return tuple_


@native
def make_output(output: Ptr[Output], state: Ptr[State]) -> Ptr[Object]:
    """Make an output. Returns null after an error, NO_MATCH where only Python knows how."""
    layout = local(reader.Layout)
    passed = local(Ptr[Object], 4)
    table = direct.place
    if not reader.find_layout(output, state, layout, False):
        return Ptr[Object](NO_MATCH)
    passed[1] = as_tuple(layout.shape, layout.rank)
    passed[2] = as_tuple(layout.strides, layout.rank)
    passed[3] = output.type
    make = table.empty_cpu if state.device == i32(torch.place.cpu) else table.empty_cuda
    tensor = Ptr[Object](None)
    if passed[1] != None and passed[2] != None:
        tensor = cpython.vectorcall(make, passed + 1, u64(3) | cpython.FREE_BEFORE, None)
    cpython.Py_DecRef(passed[1])
    cpython.Py_DecRef(passed[2])
    return tensor


@native
def result_of(objects: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Return the outputs as a call returns them; they belong to the caller then."""
    if count == 0:
        cpython.Py_IncRef(process.place.none)
        return process.place.none
    if count == 1:
        return objects[0]
    result = cpython.PyTuple_New(count)
    for number in range(count):
        if result == None:
            cpython.Py_DecRef(objects[number])
        else:
            cpython.PyTuple_SetItem(result, number, objects[number])
    return result


@native
def run(operator: Ptr[Operator], values: Ptr[Ptr[Object]]) -> Ptr[Object]:
    """Make a call. Returns its result, null after an error, or NO_MATCH."""
    state = local(State)
    slots = Ptr(local(u64, SLOTS // 8))
    outputs = local(Ptr[Output])
    nothing = Ptr[Object](NO_MATCH)
    objects = local(Ptr[Object], reader.OUTPUTS)
    if operator.plans == None or not is_quiet() or not read(operator, values, state):
        return nothing
    if not operator_calls.find_stream(state):
        return nothing
    header = operator_calls.find(operator, state, slots, u64(SLOTS), outputs)
    if header == None:
        return nothing
    created = i64(0)
    output = nothing
    while created < operator.output_count:
        output = make_output(outputs[0] + created, state)
        if address(output) <= NO_MATCH:
            break
        objects[created] = output
        state.results[created] = address(output) + direct.place.inner
        created += 1
    if created < operator.output_count:
        cpython.decref_all(objects, created)
        return output
    if not operator_calls.take_outputs(operator, header, state, slots):
        cpython.decref_all(objects, created)
        return nothing
    reader.raise_versions(state)
    if not cpython.execute(header.entry, slots, Ptr[Object](header.report)):
        cpython.decref_all(objects, created)
        return None
    return result_of(objects, created)


@direct_library.export
def call_directly(called: Ptr[Object], arguments: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Call an operator, or `otherwise` if the dispatcher must take the call."""
    holder = Ptr[DirectCall](Ptr(called) + plan.BYTES_DATA)
    values = local(Ptr[Object], reader.INPUTS)
    result = Ptr[Object](NO_MATCH)
    inputs = holder.operator.inputs
    if count <= inputs:
        for number in range(inputs):
            values[number] = arguments[number] if number < count else holder.defaults[number]
        result = run(holder.operator, values)
    if address(result) != NO_MATCH:
        return result
    return cpython.vectorcall(holder.otherwise, arguments, u64(count), None)


@native
def is_bypassed(values: Ptr[Ptr[Object]], count: i64, with_gradients: bool) -> Ptr[Object]:
    """Return whether the dispatcher would only call the kernel and, if gradients are needed, autograd.

    Gradients must be needed exactly if `with_gradients`.
    """
    types = process.place
    good = is_quiet()
    needed = False
    enabled = direct.place.grad_enabled()
    for number in range(count):
        value = values[number]
        kind = value.kind
        if is_tensor(value):
            good = good and is_plain(value, False)
            needed = needed or (enabled and not is_plain(value, True))
        elif value != types.none and kind != types.int_type and kind != types.float_type:
            good = good and (kind == types.bool_type or kind == types.str_type)
    result = types.true if good and needed == with_gradients else types.false
    cpython.Py_IncRef(result)
    return result


@direct_library.export
def is_direct(module: Ptr[Object], values: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Return whether the dispatcher would only call the kernel with these tensors, numbers, strings and None."""
    return is_bypassed(values, count, False)


@direct_library.export
def needs_gradients(module: Ptr[Object], values: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Return whether the dispatcher would only call the kernel and autograd with these arguments."""
    return is_bypassed(values, count, True)
