# pyright: reportReturnType=false
"""Calls of operators from Python that go round PyTorch's dispatcher: where it would do nothing but call the kernel.

That is so for plain tensors, if nothing is on that looks at operators (modes, transforms, autocast, tracing, profiling) and no gradient is asked for.
Arguments are Python's, and so are errors; all else is as `torch.py` has it.
"""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, address, f64, i32, i64, local, native, ref, struct, u64
from ..arguments import plan
from ..arguments.cpython import (
    FREE_BEFORE,
    Object,
    Py_DecRef,
    Py_IncRef,
    PyErr_Clear,
    PyErr_Occurred,
    PyFloat_AsDouble,
    PyLong_FromLongLong,
    PyTuple_New,
    PyTuple_SetItem,
    drop,
    execute,
    vectorcall,
    whole_number,
)
from ..arguments.planned_calls import NOT_FORESEEN
from ..arguments.process import at, world
from ..tvm_ffi.reader import BOOL, FLOAT, INT, NONE
from .reader import (
    INPUTS,
    MAYBE_TENSOR,
    OUTPUTS,
    REAL,
    SLOTS,
    TENSOR,
    TRUTH,
    WHOLE,
    Layout,
    Operator,
    Output,
    State,
    begin,
    find,
    find_layout,
    note_written,
    on_its_stream,
    raise_versions,
    read_tensor,
    take_outputs,
    torch,
)

KEYS, TYPES = 8, 2


@struct
class Direct:
    """What is known of PyTorch's tensors and of what changes calls. Its functions are those of C++ by these names, where they are exported."""

    types: Array[Ptr[Object], TYPES]
    """Of tensors: these very ones."""
    inner: u64
    """Where a tensor holds a pointer to its record, which is what a tensor is in C++, and where the record has the bits of its dispatch keys."""
    bits: u64
    foreign: u64
    """Bits of what is no plain tensor."""
    requires_grad: Fn[[Ptr], bool]
    """c10::TensorImpl::requires_grad"""
    grad_enabled: Fn[[], bool]
    """c10::GradMode::is_enabled"""
    included: Fn[[i32], bool]
    """c10::impl::tls_is_dispatch_key_included"""
    excluded: Fn[[u64], bool]
    """c10::impl::tls_is_dispatch_keyset_excluded: all of them"""
    has_callbacks: Fn[[], bool]
    """at::hasCallbacks: of profilers"""
    has_modes: Fn[[], bool]
    """at::impl::torch_function_mode_enabled"""
    empty_cpu: Ptr[Object]
    empty_cuda: Ptr[Object]
    """Python's functions of extents, strides and type that make a tensor on the current device, without the dispatcher."""
    looking: Array[i32, KEYS]
    """Keys that are included where something looks at operators."""
    keys: i64
    not_foreseen: Ptr[Object]
    """NotImplemented"""
    autocast: u64
    """Keys that are excluded where autocast is off."""


@struct
class Called:
    """What the object of a call's function, `bytes`, holds."""

    operator: Ptr[Operator]
    defaults: Array[Ptr[Object], INPUTS]
    """Null: there is none."""


calling = Library("torch_direct", prefix="kiln_")
direct = calling.variable("direct", Direct)


@native
def is_quiet() -> bool:
    """Whether nothing looks at operators."""
    known = direct.place
    for number in range(known.keys):
        if known.included(known.looking[number]):
            return False
    return known.excluded(known.autocast) and not known.has_callbacks() and not known.has_modes()


@native
def is_tensor(value: Ptr[Object]) -> bool:
    return value.kind == direct.place.types[0] or value.kind == direct.place.types[1]


@native
def is_plain(value: Ptr[Object], with_gradients: bool) -> bool:
    """Whether a tensor is a plain one that asks for no gradient."""
    known = direct.place
    record = Ptr(at(value, known.inner))
    if Ptr[u64](record + known.bits)[0] & known.foreign != 0:
        return False
    return not (with_gradients and known.requires_grad(record))


@native
def read(operator: Ptr[Operator], values: Ptr[Ptr[Object]], state: Ptr[State]) -> bool:
    """Read all arguments."""
    begin(state)
    known, with_gradients, number = world.place, direct.place.grad_enabled(), local(i64)
    for position in range(operator.inputs):
        kind, value, argument = operator.kinds[position], values[position], ref(state.arguments)[position]
        first = state.tensors
        argument.length = 0
        argument.value = 0
        if value == None:
            return False
        if kind == TENSOR or (kind == MAYBE_TENSOR and value != known.none):
            if not is_tensor(value) or not is_plain(value, with_gradients):
                return False
            if not read_tensor(address(value) + direct.place.inner, state, argument):
                return False
        elif kind == MAYBE_TENSOR:
            argument.type = NONE
        elif kind == TRUTH and value.kind == known.bool_type:
            argument.type = BOOL
            argument.value = u64(value == known.true)
        elif kind == WHOLE and value.kind == known.int_type and whole_number(value, number):
            argument.type = INT
            argument.value = u64(number[0])
        elif kind == REAL and (value.kind == known.float_type or value.kind == known.int_type):
            real = PyFloat_AsDouble(value)
            if PyErr_Occurred() != None:
                PyErr_Clear()
                return False
            argument.type = FLOAT
            Ptr[f64](ref(argument).value)[0] = real
        else:
            return False
        if not note_written(operator, position, first, state):
            return False
    return state.device >= 0


@native
def as_tuple(numbers: Ptr[i64], count: i64) -> Ptr[Object]:
    made = PyTuple_New(count)
    for number in range(count):
        if made != None:
            PyTuple_SetItem(made, number, PyLong_FromLongLong(numbers[number]))
    return made


@native
def make_output(output: Ptr[Output], state: Ptr[State]) -> Ptr[Object]:
    """An output; null after an error, NOT_FORESEEN where only Python knows how."""
    layout, given, known = local(Layout), local(Ptr[Object], 4), direct.place
    if not find_layout(output, state, layout):
        return Ptr[Object](NOT_FORESEEN)
    given[1] = as_tuple(layout.shape, layout.rank)
    given[2] = as_tuple(layout.strides, layout.rank)
    given[3] = output.type
    make, made = known.empty_cpu if state.device == i32(torch.place.cpu) else known.empty_cuda, Ptr[Object](None)
    if given[1] != None and given[2] != None:
        made = vectorcall(make, given + 1, u64(3) | FREE_BEFORE, None)
    Py_DecRef(given[1])
    Py_DecRef(given[2])
    return made


@native
def result_of(objects: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """What the call returns: the outputs are the caller's then."""
    if count == 0:
        Py_IncRef(world.place.none)
        return world.place.none
    if count == 1:
        return objects[0]
    result = PyTuple_New(count)
    for number in range(count):
        if result == None:
            Py_DecRef(objects[number])
        else:
            PyTuple_SetItem(result, number, objects[number])
    return result


@native
def run(operator: Ptr[Operator], values: Ptr[Ptr[Object]]) -> Ptr[Object]:
    """Make a call: its result, null after an error, or NOT_FORESEEN."""
    state, slots, outputs = local(State), Ptr(local(u64, SLOTS // 8)), local(Ptr[Output])
    nothing, objects = Ptr[Object](NOT_FORESEEN), local(Ptr[Object], OUTPUTS)
    if operator.held == None or not is_quiet() or not read(operator, values, state):
        return nothing
    if not on_its_stream(state):
        return nothing
    header = find(operator, state, slots, u64(SLOTS), outputs)
    if header == None:
        return nothing
    made, output = i64(0), nothing
    while made < operator.made:
        output = make_output(outputs[0] + made, state)
        if address(output) <= NOT_FORESEEN:
            break
        objects[made] = output
        state.results[made] = address(output) + direct.place.inner
        made += 1
    if made < operator.made:
        drop(objects, made)
        return output
    if not take_outputs(operator, header, state, slots):
        drop(objects, made)
        return nothing
    raise_versions(state)
    if not execute(header.entry, slots, Ptr[Object](header.report)):
        drop(objects, made)
        return None
    return result_of(objects, made)


@calling.export
def call_directly(called: Ptr[Object], given: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """A call with these arguments, or NotImplemented: the dispatcher has to take it."""
    about, values, result = (
        Ptr[Called](Ptr(called) + plan.BYTES_DATA),
        local(Ptr[Object], INPUTS),
        Ptr[Object](NOT_FORESEEN),
    )
    inputs = about.operator.inputs
    if count <= inputs:
        for number in range(inputs):
            values[number] = given[number] if number < count else about.defaults[number]
        result = run(about.operator, values)
    if address(result) != NOT_FORESEEN:
        return result
    Py_IncRef(direct.place.not_foreseen)
    return direct.place.not_foreseen


@native
def told(values: Ptr[Ptr[Object]], count: i64, with_gradients: bool) -> Ptr[Object]:
    """Whether the dispatcher would only call the kernel, once gradients are seen to; and whether they are as said."""
    known, good, asked = world.place, is_quiet(), False
    enabled = direct.place.grad_enabled()
    for number in range(count):
        value = values[number]
        kind = value.kind
        if is_tensor(value):
            good = good and is_plain(value, False)
            asked = asked or (enabled and not is_plain(value, True))
        elif value != known.none and kind != known.int_type and kind != known.float_type:
            good = good and (kind == known.bool_type or kind == known.str_type)
    result = known.true if good and asked == with_gradients else known.false
    Py_IncRef(result)
    return result


@calling.export
def is_direct(module: Ptr[Object], values: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Whether the dispatcher would only call the kernel with these arguments: tensors, numbers, texts and None."""
    return told(values, count, False)


@calling.export
def asks_for_gradients(module: Ptr[Object], values: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Whether it would do so, but for gradients."""
    return told(values, count, True)
