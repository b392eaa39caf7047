"""Parameters of exported functions: their C types, the records by which native code reads them, and their metadata."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base_dsl.arguments import MAX64, MIN64, is_numeric_type, number_format
from ...base_dsl.conventions import describe_key
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Integer
from ...cute.host.arguments import StreamNode
from ...cute.host.runtime import PointerSignature
from ...cute.host.tensor_forms import DynamicLeaf, TensorSignature
from ..arguments import plan
from ..arguments.native_caller import result_kind
from ..arguments.plan import Planner
from .entry import ANYTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...base_dsl.compiled_function import CompiledFunction

_C_NUMBERS = {"Boolean": "uint8_t", "Float32": "float", "TFloat32": "float", "Float64": "double"}
_RESERVED_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    compl concept const const_cast consteval constexpr constinit continue contract_assert co_await co_return
    co_yield decltype default delete do double dynamic_cast else enum explicit export extern false float for fortran
    friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename typeof typeof_unqual
    union unsigned using virtual void volatile wchar_t while xor xor_eq

    BIG_ENDIAN BUFSIZ BYTE_ORDER EOF EXIT_FAILURE EXIT_SUCCESS FILENAME_MAX FOPEN_MAX L_ctermid L_cuserid L_tmpnam
    LITTLE_ENDIAN MB_CUR_MAX NULL PDP_ENDIAN P_tmpdir PTRDIFF_MAX PTRDIFF_MIN RAND_MAX RENAME_EXCHANGE
    RENAME_NOREPLACE RENAME_WHITEOUT SEEK_CUR SEEK_DATA SEEK_END SEEK_HOLE SEEK_SET SIG_ATOMIC_MAX SIG_ATOMIC_MIN
    SIZE_MAX TMP_MAX WCHAR_MAX WCHAR_MIN WCONTINUED WEXITED WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED
    WIFSTOPPED WINT_MAX WINT_MIN WNOHANG WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED FD_CLR FD_ISSET FD_SET
    FD_SETSIZE FD_ZERO NFDBITS alloca assert be16toh be32toh be64toh errno htobe16 htobe32 htobe64 htole16 htole32
    htole64 i386 le16toh le32toh le64toh linux major makedev minor offsetof stderr stdin stdout strdupa strndupa
    unix unreachable I complex imaginary max min

    module size_t ptrdiff_t intptr_t uintptr_t intmax_t uintmax_t
"""
"""Keywords of C and C++, macros of the headers that ours and most programs include, and names that ours uses itself."""
_TAKEN = frozenset(_RESERVED_WORDS.split())
_TAKEN_PATTERN = re.compile(
    r"u?int(_fast|_least)?(8|16|32|64)_t|U?INT(_FAST|_LEAST)?(8|16|32|64|PTR|MAX)_(C|MAX|MIN|WIDTH)|\w+_WIDTH"
)
_RESERVED = re.compile(r"_[A-Z_]")


def c_names(names: Sequence[str]) -> list[str]:
    """Return parameter names that C and C++ accept: ASCII, no keyword or macro, and all different."""
    taken: list[str] = []
    for name in names:
        c_name = re.sub(r"[^A-Za-z0-9_]", lambda letter: f"u{ord(letter[0]):04x}", name)
        c_name = f"p{c_name}" if _RESERVED.match(c_name) else c_name
        while (
            c_name in _TAKEN
            or _TAKEN_PATTERN.fullmatch(c_name)
            or c_name in taken
            or (c_name != name and c_name in names)
        ):
            c_name += "_"
        taken.append(c_name)
    return taken


@dataclasses.dataclass
class Parameter:
    """A parameter of an exported function."""

    name: str
    about: dict[str, Any]
    """Its metadata."""
    record: bytes
    """Its record in call plans."""
    c_name: str = ""

    @property
    def kind(self) -> str:
        return self.about["kind"]

    @property
    def is_in_c(self) -> bool:
        """Whether C passes it; a parameter that is None is not passed."""
        return self.kind != "none"


@dataclasses.dataclass
class Signature:
    """The parameters and results of an exported function."""

    parameters: list[Parameter]
    ambient: list[bytes]
    """Records of streams that are not passed."""
    stream_places: list[int]
    """For each of these streams, how many parameters are before it."""
    slots_bytes: int
    results: tuple[int, int]
    """The kind of result (`plan.NO_RESULT`, ...) and its offset in the slots."""
    text: str

    def plan(self, for_c: bool) -> bytes:
        """Return the call plan; `for_c` without the parameters that C does not pass."""
        passed = [parameter for parameter in self.parameters if parameter.is_in_c or not for_c]
        head = plan.Plan(
            slots_bytes=max(self.slots_bytes, 8),
            count=len(passed),
            record_count=len(passed) + len(self.ambient),
            result=self.results[0],
            result_at=self.results[1],
        )
        return b"".join([bytes(head), *(parameter.record for parameter in passed), *self.ambient])


def c_number(name: str) -> str:
    """Return the C type for numbers of a type, by name; 16-bit and narrower floats are passed as their bits."""
    if name in _C_NUMBERS:
        return _C_NUMBERS[name]
    if name.startswith(("Int", "Uint")):
        return name.lower() + "_t"
    return "uint16_t" if "16" in name else "uint8_t"


def signature_of(compiled: CompiledFunction[Any], targets: Sequence[str] = ()) -> Signature:
    """Return the signature of an exported function, with arrays of all `targets`. Refuses arguments that only Python
    can pass."""
    planner = Planner(False, compiled.target)
    targets = targets or (compiled.target,)
    parameters: list[Parameter] = []
    slots: list[int] = []
    places: list[int] = []
    for name in compiled.passed:
        if name in compiled.ambient:
            slots.append(planner.slot("Q"))
            places.append(len(parameters))
            continue
        if name in compiled.static:
            parameters.append(Parameter(name, {"kind": "none"}, plan.record(plan.ValueRecord, plan.SAME, 0)))
            continue
        described = _described(compiled, compiled.keys[name], planner, targets)
        if described is None:
            what = f"argument {name!r} of {compiled.function_name} is {describe_key(compiled.keys[name])}"
            hint = "it takes tensors, pointers, streams, numbers, shapes, and tuples of these"
            raise type_error(f"{what}, which exported code cannot take", hint)
        parameters.append(Parameter(name, *described))
    for parameter, name in zip(parameters, c_names([each.name for each in parameters]), strict=True):
        parameter.c_name = name
    array = next((i for i, each in enumerate(parameters) if each.kind == "tensor"), 0)
    streams = [plan.record(plan.ValueRecord, plan.AMBIENT, slot, value=array) for slot in slots]
    result = result_kind(compiled)
    if result is None:
        raise type_error(
            f"{compiled.function_name} returns more than one number, which exported code cannot",
            "write results to tensors",
        )
    briefs = [f"{each.name}: {brief(each.about)}" for each in parameters]
    text = f"{compiled.function_name}({', '.join(briefs)})"
    return Signature(parameters, streams, places, compiled.slot_bytes, (result, compiled.results_at), text)


def _described(
    compiled: CompiledFunction[Any], key: object, planner: Planner, targets: Sequence[str]
) -> tuple[dict[str, Any], bytes] | None:
    """Return metadata and the record of arguments of a key, or None if exported code cannot take them."""
    if isinstance(key, TensorSignature):
        caller: Any = compiled.source.dsl.caller
        record = caller.record(key, None, planner)
        if record is None:
            return None
        head = _without_addresses(record)
        for target in targets:
            head.devices |= _without_addresses(caller.record(key, None, Planner(False, target))).devices
        head.flags &= plan.READONLY | plan.UNCOUNTED  # entry points find the device themselves
        return _tensor(key), bytes(head) + record[ctypes.sizeof(head) :]
    if isinstance(key, PointerSignature):
        caller = compiled.source.dsl.caller
        about = {"kind": "pointer", "type": key.dtype.__name__, "memory": key.memspace.name, "alignment": key.alignment}
        return about, bytes(_without_addresses(caller.record(key, None, planner)))
    if key == StreamNode.key:
        return {"kind": "stream"}, plan.record(plan.Record, plan.STREAM, planner.slot("Q"))
    if is_numeric_type(key):
        return _number(key, planner)
    if not isinstance(key, tuple) or not key:
        return {"kind": "static"}, plan.record(plan.Record, ANYTHING, 0)
    if isinstance(key[0], type) and issubclass(key[0], (tuple, list)):
        slot = planner.slot("")
        elements: list[Any] = [_described(compiled, child, planner, targets) for child in key[1:]]
        return None if None in elements else _group(slot, elements)
    kinds = [kind for kind in key[1:] if is_numeric_type(kind)]
    if len(kinds) != len(key) - 1:
        static = not any(isinstance(part, (TensorSignature, PointerSignature)) for part in key)
        return ({"kind": "static"}, plan.record(plan.Record, ANYTHING, 0)) if static and not kinds else None
    if len(kinds) == 1 and key[0] == ():
        return _number(kinds[0], planner)
    slot = planner.slot("")
    return _group(slot, [_number(kind, planner) for kind in kinds])


def _group(slot: int, elements: Sequence[tuple[Mapping[str, object], bytes]]) -> tuple[dict[str, Any], bytes]:
    about = {"kind": "tuple", "elements": [about for about, _ in elements]}
    records = b"".join(record for _, record in elements)
    return about, plan.record(plan.GroupRecord, plan.GROUP, slot, records, count=len(elements))


def _number(kind: Any, planner: Planner) -> tuple[dict[str, Any], bytes]:
    about = {"kind": "number", "type": kind.__name__}
    slot = planner.slot(number_format(kind))
    if issubclass(kind, Integer):
        return about, plan.record(
            plan.IntegerRecord,
            plan.INTEGER,
            slot,
            types=plan.INT | plan.BOOL,
            typed=max(kind.width // 8, 1),
            least=max(kind.min, MIN64),
            greatest=min(kind.max, MAX64),
        )
    types = plan.INT | plan.BOOL | plan.FLOAT if kind.width in (32, 64) else 0
    return about, plan.record(plan.RealRecord, plan.REAL, slot, types=types, bytes=-(-kind.width // 8))


def _without_addresses(record: bytes) -> plan.ArrayRecord:
    """Return the head of an array's record without the fields that are addresses in this process."""
    head = plan.ArrayRecord.from_buffer_copy(record)
    head.signature = head.element = head.other_element = head.numpy = 0
    return head


def _tensor(key: TensorSignature) -> dict[str, Any]:
    def leaf(x: object) -> Any:
        return {"bits": x.width, "divisibility": x.divisibility} if isinstance(x, DynamicLeaf) else x

    return {
        "kind": "tensor",
        "type": key.dtype.__name__,
        "shape": list(map(leaf, key.shape)),
        "stride": list(map(leaf, key.stride)),
        "alignment": key.alignment,
        "memory": key.memspace.name,
        "readonly": key.readonly,
        "counted": key.counted,
    }


def brief(about: dict[str, Any]) -> str:
    """Return a parameter as signatures in messages show it."""
    kind = about["kind"]
    if kind == "tensor":
        extents = ", ".join("?" if isinstance(leaf, dict) else str(leaf) for leaf in about["shape"])
        return f"Tensor([{extents}], {about['type']})"
    if kind == "tuple":
        return f"({', '.join(map(brief, about['elements']))})"
    return {"number": about.get("type", ""), "pointer": f"Pointer({about.get('type')})", "none": "None"}.get(kind, kind)


def type_schema(signature: Signature) -> dict[str, Any]:
    """Return the types of a function's result and arguments, as TVM-FFI writes them."""
    results = {plan.NO_RESULT: "None", plan.REAL32: "float", plan.REAL64: "float", plan.TRUTH: "bool"}
    result = {"type": results.get(signature.results[0] & 0xFF, "int")}
    return {"type": "ffi.Function", "args": [result, *(_type_schema(each.about) for each in signature.parameters)]}


def _type_schema(about: dict[str, Any]) -> dict[str, Any]:
    kind = about["kind"]
    if kind == "tuple":
        return {"type": "Tuple", "args": [_type_schema(each) for each in about["elements"]]}
    if kind == "number":
        name = about["type"]
        return {"type": "bool" if name == "Boolean" else "float" if "Float" in name else "int"}
    return {"type": {"tensor": "Tensor", "none": "None", "static": "Any"}.get(kind, "ctypes.c_void_p")}


def numbers_of(about: dict[str, Any]) -> list[str] | None:
    """Return the types of the numbers in a tuple, or None if it holds something else."""
    numbers: list[str] = []
    for each in about["elements"]:
        if each["kind"] == "number":
            numbers.append(each["type"])
        elif each["kind"] == "tuple" and (inner := numbers_of(each)) is not None:
            numbers += inner
        elif each["kind"] != "static":
            return None
    return numbers
