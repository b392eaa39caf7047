# pyright: reportReturnType=false
"""Native kernels of operators in this process, which PyTorch's dispatcher calls.

A kernel does not learn which operator it belongs to, so there is one for each, made in advance. The dispatcher calls
without the GIL, which is taken to check guards. A call that matches no plan goes to an operator that Python implements,
with one more argument: where to put the text of an error. Nothing is raised through the dispatcher, which would print
it.
"""

from __future__ import annotations

from typing import Any

from ...native import Array, Ptr, address, i32, i64, local, native, ref, text, u64
from ..arguments import cpython, plan
from ..arguments.cpython import Object
from ..arguments.devices import following
from ..arguments.plan import Candidates, Plan
from ..arguments.planned_calls import guards_hold
from ..arguments.process import at, process
from ..tvm_ffi.reader import Argument, take
from . import reader
from .reader import CANDIDATES, INPUT, INPUTS, OUTPUT, OUTPUTS, STREAM, Operator, Output, State, operator_library, torch

OPERATORS = 128
"""The most operators of a process."""
SLOTS = 2048
"""Bytes of slots; Python takes calls that need more."""

operators = operator_library.variable("torch_operators", Array[Operator, OPERATORS])
seen = operator_library.variable("torch_seen", Array[u64, 8])


@native
def read(operator: Ptr[Operator], stack: Ptr[u64], state: Ptr[State]) -> bool:
    """Read all arguments."""
    reader.begin(state)
    for number in range(operator.inputs):
        first = state.tensors
        if not reader.read_argument(operator, stack, number, state):
            return False
        if not reader.note_written(operator, number, first, state):
            return False
    return state.device >= 0


@native
def find_stream(state: Ptr[State]) -> bool:
    """Find the current stream; False if the tensors are on another device than the current one."""
    table = torch.place
    current = local(i32)
    state.stream = 0
    if state.device == i32(table.cpu):
        return True
    if state.device != i32(table.cuda) or table.stream == None:
        return False
    if table.several != 0:
        if table.current_device(current) != 0 or current[0] != state.device_number:
            return False
    return table.stream(state.device_number, ref(state).stream) == 0


@native
def take_inputs(operator: Ptr[Operator], header: Ptr[Plan], state: Ptr[State], slots: Ptr) -> bool:
    """Fill the slots of inputs and streams. Returns whether they match the plan."""
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
def take_outputs(operator: Ptr[Operator], header: Ptr[Plan], state: Ptr[State], slots: Ptr) -> bool:
    """Fill the slots of outputs. Returns whether they match the plan."""
    record = header.records
    for number in range(operator.parameters):
        source = operator.sources[number]
        if source.kind == OUTPUT:
            argument = local(Argument)
            if not reader.read_tensor(state.results[source.index], state, argument):
                return False
            if not take(record, argument, slots):
                return False
        record = following(record)
    return True


@native
def find(operator: Ptr[Operator], state: Ptr[State], slots: Ptr, room: u64, outputs: Ptr[Ptr[Output]]) -> Ptr[Plan]:
    """Find a plan that matches a call, and fill its slots; null if there is none. The GIL is held."""
    held = at(operator.function, process.place.jit.slot)
    if held == None or held != operator.plans:
        return None
    candidates = Ptr[Candidates](Ptr(cpython.PyTuple_GetItem(held, 0)) + plan.BYTES_DATA)
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


@native
def run(operator: Ptr[Operator], stack: Ptr[u64], error: Ptr[Ptr]) -> bool:
    """Make a call by a plan; False if none matches.

    Results replace the arguments on the stack; the text of an error is in `error`.
    """
    state = local(State)
    slots = Ptr(local(u64, SLOTS // 8))
    outputs = local(Ptr[Output])
    if operator.plans == None or not read(operator, stack, state):
        return False
    if not find_stream(state):
        return False
    gil = cpython.PyGILState_Ensure()
    header = find(operator, state, slots, u64(SLOTS), outputs)
    cpython.PyGILState_Release(gil)
    if header == None:
        return False
    created = reader.make_outputs(operator, outputs[0], state, False)
    if created < operator.output_count or not take_outputs(operator, header, state, slots):
        reader.drop_results(state, created)
        return False
    reader.raise_versions(state)
    record = header.entry(slots)
    if record != None:
        error[0] = error_text(operator, header, record)
    reader.finish(operator, stack, state, error[0] == None)
    return True


@native
def error_text(operator: Ptr[Operator], header: Ptr[Plan], record: Ptr) -> Ptr:
    """Return the text of the error that compiled code reported; null if it reported none."""
    gil = cpython.PyGILState_Ensure()
    text_ = Ptr(None)
    report = local(Ptr[Object])
    number = cpython.PyLong_FromUnsignedLongLong(address(record))
    report[0] = number
    message = cpython.call_python(operator.report, Ptr[Object](header.report), report, 1, None)
    if message == None:
        cpython.PyErr_Clear()
        text_ = Ptr(text("the call failed, and Python could not say how"))
    elif message != process.place.none:
        text_ = Ptr(message) + plan.BYTES_DATA
    cpython.Py_DecRef(message)  # Python keeps it
    cpython.Py_DecRef(number)
    cpython.PyGILState_Release(gil)
    return text_


@native
def call(operator: Ptr[Operator], stack: Ptr[u64]) -> None:
    """Take a call of an operator. What it raises passes through this frame."""
    error = local(Ptr)
    error[0] = None
    if not run(operator, stack, error):
        passed = local(u64, INPUTS + OUTPUTS + 1)
        inputs = operator.inputs
        outputs = operator.output_count
        passed[0] = address(error)
        for number in range(inputs):
            passed[number + 1] = stack[number]
        status = torch.place.call(operator.name, text(""), passed)
        if status != 0:
            error[0] = Ptr(text("the call failed in PyTorch's dispatcher"))
        if error[0] == None:
            for number in range(outputs):
                stack[number] = passed[number]
        elif status == 0:
            for number in range(outputs):
                torch.place.delete_tensor(passed[number])
    if error[0] != None:
        torch.place.check(False, text("kiln"), text("kiln"), i32(0), error[0])


@operator_library.export
def torch_probe(stack: Ptr[u64], inputs: u64, outputs: u64) -> None:
    """Note the arguments it is called with, and return the first."""
    ref(seen.place)[0][0] = inputs
    ref(seen.place)[1][0] = outputs
    for number in range(i64(inputs)):
        if number < 6:
            ref(seen.place)[number + 2][0] = stack[number]


def _kernel(number: int):
    """Return the kernel of an operator."""

    def kernel(stack: Ptr[u64], inputs: u64, outputs: u64) -> None:
        call(ref(operators.place)[number], stack)

    kernel.__name__ = f"torch_{number}"
    return operator_library.export(kernel)


kernels: list[Any] = [_kernel(number) for number in range(OPERATORS)]
