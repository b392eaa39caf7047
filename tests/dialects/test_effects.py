"""What declarations say that operations do, against what targets do for them: their PTX, and what the detector is told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from operation_examples import ARGUMENTS, CONSTANTS, EXAMPLES

from kiln.analysis import effects as analysis
from kiln.base_dsl.compiler import Compilation
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.dialects import cute, nvgpu
from kiln.dialects.declaration import CONVERGED, ORDERS, PURE, UNSTATED, VARIES, Access, Alias, OpView
from kiln.dialects.definition import Pointer
from kiln.hardware.architectures import Arch
from kiln.hardware.engines import BULK_SOURCE, ENGINES, THREAD
from kiln.mlir import context, find, ir
from kiln.targets.cpu import lower as cpu
from kiln.targets.cpu.sanitizer.instrument import Instrumentation
from kiln.targets.nvidia import lower as nvidia
from kiln.targets.nvidia.passes.kernel_outlining import LaunchFacts

OPERATIONS = {kind.OPERATION_NAME: kind for kind in (*cute.OPERATIONS, *nvgpu.OPERATIONS)}
HOST = ("cuda.launch_ex", "cute_nvgpu.driver_launch", "cute_nvgpu.tensor_map_encode")
every_operation = pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)
of_kernels = pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in HOST])


def effects(kind: type[OpView]) -> dict[str, object]:
    """What a declaration says besides aliases."""
    said = {
        "reads": kind.READS,
        "writes": kind.WRITES,
        "engine": kind.ENGINE,
        "commits": kind.COMMITS,
        "awaits": kind.AWAITS,
        "mbarrier": kind.MBARRIER,
        "orders": kind.ORDERS,
        "waits": kind.WAITS,
        "converged": kind.CONVERGED,
    }
    return {name: value for name, value in said.items() if value}


# --- declarations ----------------------------------------------------------------------------------------------------


def _takes_memory(kind: type[OpView]) -> bool:
    kinds = (cute.Ptr, cute.Memref, Pointer, nvgpu.tma.TensorMap)
    parts = [part for each in kind.OPERANDS.values() for part in getattr(each, "__args__", (each,))]
    return any(part in kinds for part in parts)


@every_operation
def test_an_operation_says_what_it_does(kind: type[OpView]) -> None:
    said = effects(kind)
    if kind.TRAITS is PURE:
        assert not said and not kind.STAYS
        return
    if kind.OPERATION_NAME in ("cute.alloc_rmem", "cute.alloc_smem"):
        return
    assert said or kind.STAYS, f"{kind.__name__} says neither what it does nor why it stays"
    assert bool(said) != bool(kind.STAYS), f"{kind.__name__} says more than why it stays"
    touches = kind.READS or kind.WRITES or kind.MBARRIER or isinstance(kind.ALIAS, Alias)
    assert touches or kind.ORDERS or kind.STAYS or not _takes_memory(kind), f"{kind.__name__} says not what it accesses"


@every_operation
def test_an_operation_speaks_of_its_own_operands(kind: type[OpView]) -> None:
    for access in (*kind.READS, *kind.WRITES):
        assert access.operand in kind.OPERANDS
        if isinstance(access.bytes, str):
            assert access.bytes in {**kind.OPERANDS, **kind.ATTRIBUTES}
    stored = {access.value for access in kind.WRITES}
    assert stored <= {"", *kind.OPERANDS}
    assert "value" in stored or "value" not in kind.OPERANDS or not kind.WRITES, (
        f"{kind.__name__} says not what it stores"
    )
    assert {access.value for access in kind.READS} <= {"", *kind.RESULTS}
    assert not kind.MBARRIER or kind.OPERANDS[kind.MBARRIER] is Pointer
    assert kind.ORDERS in ("", *ORDERS)
    assert kind.CONVERGED in ("", *CONVERGED)
    assert (kind.CONVERGED == "mask") == ("mask" in kind.OPERANDS and kind.WAITS and not kind.ENGINE)


@every_operation
def test_an_operation_says_who_gets_different_results(kind: type[OpView]) -> None:
    follows = kind.READS or kind.MBARRIER or isinstance(kind.ALIAS, Alias) or (kind.TRAITS is PURE and kind.OPERANDS)
    if kind.RESULTS and not follows:
        assert kind.VARIES in VARIES, f"{kind.__name__} says not who gets different results (varies=...)"
    else:
        assert kind.VARIES is UNSTATED, f"the result of {kind.__name__} follows from its operands"


@pytest.mark.parametrize("engine", ENGINES[1:], ids=lambda engine: engine.name)
def test_what_is_issued_to_an_engine_can_be_waited_for(engine: Any) -> None:
    issuers = [kind for kind in nvgpu.OPERATIONS if kind.ENGINE is engine]
    committers = [kind for kind in nvgpu.OPERATIONS if engine in kind.COMMITS]
    waiters = [kind for kind in nvgpu.OPERATIONS if engine in kind.AWAITS]
    assert issuers or engine is BULK_SOURCE  # the other half of bulk stores
    by_mbarrier = [*committers, *issuers] if all(kind.MBARRIER for kind in issuers) else committers
    assert bool(waiters) == ("wait" in engine.completion)
    assert any(kind.MBARRIER for kind in by_mbarrier) == ("mbarrier" in engine.completion)
    assert engine is not THREAD


def test_what_waits_for_an_engine_may_be_waited_in_or_says_why_not() -> None:
    by_name = {kind.OPERATION_NAME: kind for kind in nvgpu.OPERATIONS if kind.AWAITS}
    assert {name for name, kind in by_name.items() if not kind.WAITS} == {
        "cute_nvgpu.cp_async_wait",  # a thread waits for its own copies, which the CPU target carries out there
        "cute_nvgpu.cp_async_bulk_wait",
    }


# --- PTX -------------------------------------------------------------------------------------------------------------


def kernel(name: str, text: str = "") -> ir.Module:
    """A kernel with the example of an operation, or with another text."""
    text = text or EXAMPLES[name][0]
    if name == "cute_nvgpu.wgmma":  # its accumulator is the kernel's own
        text = f'%made = "cute.alloc_rmem"() {{count = 128 : i64}} : () -> {ARGUMENTS["%r"]}\n' + text.replace(
            "%r", "%made"
        )
    used = set(re.findall(r"%\w+", text))
    arguments = ", ".join(f"{each}: {type_}" for each, type_ in ARGUMENTS.items() if each in used)
    constants = "\n".join(f"{each} = arith.constant {value} : i32" for each, value in CONSTANTS.items() if each in used)
    with context():
        return ir.Module.parse(
            f"func.func @f({arguments}) attributes {{cute.kernel}} {{ {constants}\n {text}\n func.return }}"
        )


WORDS = {
    "engine": r"\b(cp|cp\.reduce|st)\.async\b(?!\.(commit|wait|mbarrier|bulk\.(commit|wait|prefetch)))"
    r"|mma_async|tcgen05\.(mma|cp|shift|ld|st)\b|try_cancel\.async",
    "commits": r"commit_group|tcgen05\.commit|cp\.async\.mbarrier\.arrive",
    "awaits": r"wait_group|tcgen05\.wait",
    "mbarrier": r"\bmbarrier\b",
    "orders": r"\bfence\b|fenceproxy|\.(acquire|release|acq_rel)\b|\bbar\.|barrier\.cluster|griddepcontrol|bar\.warp"
    r"|\batom\.|mbarrier\.(try|test)_wait",
    "converged": r"\.sync\b|\.aligned\b|\bbar\.(sync|arrive)",
}
"""What the names of instructions have in them, in the manual of PTX, by what the declarations of operations say."""


def ptx_of(name: str) -> Iterator[str]:
    """The inline PTX and the operations of NVVM and LLVM that the NVIDIA target makes of an example."""
    refusal: Exception | None = None
    for arch in ("sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_107a"):
        if arch not in Arch.__members__:
            continue
        compilation = Compilation(kernel(name), "f")
        try:
            nvidia.lower(compilation, Arch[arch], [LaunchFacts("f")], lines=False)
        except DSLBaseError as error:
            refusal = error
            continue
        for op in find(compilation.module.operation, ("llvm.inline_asm",)):
            yield op.attributes["asm_string"].value
        yield from re.findall(r"(?:nvvm|llvm)\.[\w.]+", str(compilation.module))
        return
    raise AssertionError(name) from refusal


@of_kernels
def test_names_in_ptx_agree(name: str) -> None:
    texts = " ".join(ptx_of(name))
    said = effects(OPERATIONS[name])
    for what, words in WORDS.items():
        assert (what in said) == bool(re.search(words, texts)), (what, texts)
    if re.search(r"\.aligned\b|\bbar\.", texts) and "bar.warp" not in texts:
        assert said["converged"] in ("warp", "warpgroup", "aligned")


VARYING = {
    "thread": r"sreg\.tid|laneid|elect\.sync|%clock|%globaltimer|alloca",
    "cta": r"(?<!n)(ctaid|clusterid)|addressof",
}
"""What PTX reads where results differ though operands are the same, by who gets different ones."""


@pytest.mark.parametrize("name", [name for name, kind in OPERATIONS.items() if kind.VARIES in VARIES])
def test_who_gets_different_results_follows_from_ptx(name: str) -> None:
    texts = " ".join(ptx_of(name))
    varies = next((who for who, words in VARYING.items() if re.search(words, texts)), "")
    if varies == "thread" and "llvm.lshr" in texts:  # without its lowest bits
        varies = "warp"
    assert OPERATIONS[name].VARIES == varies, texts


# --- the detector ----------------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What the CPU target tells the detector of an operation."""

    accesses: set[tuple[str, int | None]]
    """"reads" or "writes", with the bytes if they are constant."""
    engines: set[str]
    events: set[str]


class _Told(Exception):
    """The detector has been told: there is nothing to compile."""


def told_of(module: ir.Module, monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the detector is told of a kernel."""
    told = Told(set(), set(), set())
    check = Instrumentation.checked_address
    call = Instrumentation.call

    def checked_address(*arguments: Any, **named: Any) -> Any:
        of = inspect.signature(check).bind(*arguments, **named).arguments
        told.accesses.add(
            ("writes" if of["write"] else "reads", of["bytes_"] if isinstance(of["bytes_"], int) else None)
        )
        if of.get("engine"):
            told.engines.add(ENGINES[of["engine"]].name)
        return check(*arguments, **named)

    def called(self: Any, expansion: Any, b: Any, event: str, *arguments: Any) -> Any:
        told.events.add(event)
        return call(self, expansion, b, event, *arguments)

    def stop(self: Any) -> None:
        raise _Told

    with monkeypatch.context() as patch, pytest.raises(_Told):
        patch.setattr(Instrumentation, "checked_address", checked_address)
        patch.setattr(Instrumentation, "call", called)
        patch.setattr(cpu.KernelExpansion, "finish", stop)
        cpu.lower(Compilation(module, "f"), Arch["sm_100a"], ("race", "memory", "sync"))
    return told


EVENTS = {
    "commits": {"commit", "tensor_commit"},
    "awaits": {"waited", "wgmma_waited", "tensor_waits"},
    "mbarrier": {"mbarrier_init", "mbarrier_inval", "mbarrier_after", "mbarrier_waits"},
}
"""Events that the detector is told of, by what the declarations of operations say."""
OF_ENGINES = {"box", "request", "tensor_access", "tensor_copy", "tensor_mma", "tensor_shift", "wgmma"}
"""Events with which the detector finds accesses itself."""


def _bytes(op: ir.Operation, access: Access) -> int | None:
    """The bytes of an access, if they are constant."""
    kind = OPERATIONS[op.name]
    if access.value and access.bytes is None:
        values = [*op.operands, *op.results]
        type_ = values[[*kind.OPERANDS, *kind.RESULTS].index(access.value)].type
        elements = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
        return elements * cute.element_bits(getattr(type_, "element_type", type_)) // 8
    if access.bytes in kind.ATTRIBUTES:
        return op.attributes[str(access.bytes)].value
    return access.bytes if isinstance(access.bytes, int) else None


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name in cpu.HANDLERS and name not in HOST])
def test_the_detector_is_told_what_the_declaration_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = kernel(name)  # the operation is the module's
    (op,) = find(module.operation, (name,))
    kind = OPERATIONS[name]
    said = effects(kind)
    told = told_of(kernel(name), monkeypatch)
    for what, events in EVENTS.items():
        if (name, what) != ("cute_nvgpu.cp_async_mbarrier_arrive", "commits"):  # an arrival with the engine's number
            assert (what in said) == bool(events & told.events), what
    assert told.engines <= {getattr(kind.ENGINE, "name", ""), BULK_SOURCE.name}
    assert (kind.ENGINE is None) or told.engines or OF_ENGINES & told.events
    assert analysis.may_order(name) or not told.events
    accesses = {("writes", _bytes(op, access)) for access in kind.WRITES}
    if "atomic" not in told.events:  # one access that does both
        accesses |= {("reads", _bytes(op, access)) for access in kind.READS}
    if OF_ENGINES & told.events:
        assert accesses and not told.accesses
    elif kind.MBARRIER:
        assert accesses == told.accesses - {("reads", 8)}
    else:
        assert accesses == told.accesses


# --- values that nobody set ------------------------------------------------------------------------------------------


def watched(name: str, unset: int | None) -> str:
    """The example of an operation whose result is stored, with an operand that nobody set."""
    before, _, example = EXAMPLES[name][0].rpartition("\n")
    start, operands, rest = re.fullmatch(r'("[\w.]+"\()([^)]*)(\).*)', example).groups()  # pyright: ignore[reportOptionalMemberAccess]
    names = operands.split(", ")
    if unset is not None:
        before += f'\n%unset = "cute.undef"() : () -> {number_type(names[unset])}'
        names[unset] = "%unset"
    example = f"{start}{', '.join(names)}{rest}"
    result = rest.rpartition(" -> ")[2]
    if result == "()":
        return f"{before}\n{example}"
    element = result.removeprefix("vector<").partition("x")[2].rstrip(">") if "<" in result else result
    pointer = f'!cute.ptr<{element}, "gmem", 16>'
    return f"""{before}
        %result = {example}
        %place = "cute.int_to_ptr"(%w) : (i64) -> {pointer}
        "cute.store"(%result, %place, %zero) : ({result}, {pointer}, i32) -> ()"""


def number_type(operand: str) -> str:
    """The type of an operand that is a number, or a vector of numbers."""
    type_ = "i32" if operand in CONSTANTS else ARGUMENTS.get(operand, "!")
    return "" if type_.startswith(("!", "tuple")) else type_


def followed(kind: type[OpView]) -> list[int]:
    """The operands of an operation that it stores, or computes its result with."""
    operands = re.findall(r"%\w+", EXAMPLES[kind.OPERATION_NAME][0].rpartition("\n")[2].partition(")")[0])
    numbers = [number for number, operand in enumerate(operands) if number_type(operand)]
    places = list(kind.OPERANDS)
    stored = [(places.index(one.operand), places.index(one.value)) for one in kind.WRITES if one.value]
    if stored:
        return [
            value for address, value in stored if address not in numbers
        ]  # tensor memory is as private as registers
    if not kind.RESULTS or kind.READS or kind.MBARRIER or isinstance(kind.ALIAS, Alias):
        return []  # the result follows from memory
    return numbers[:1] if kind.CONVERGED == "mask" else numbers


FOLLOWED = [
    (name, number)
    for name, kind in OPERATIONS.items()
    if name in cpu.HANDLERS and name not in HOST
    for number in followed(kind)
]


@pytest.mark.parametrize(("name", "number"), FOLLOWED, ids=[f"{name} {number}" for name, number in FOLLOWED])
def test_the_detector_follows_what_nobody_set(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "undefined" not in told_of(kernel(name, watched(name, None)), monkeypatch).events
    assert "undefined" in told_of(kernel(name, watched(name, number)), monkeypatch).events
