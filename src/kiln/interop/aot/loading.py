"""Loading exported functions into Python again: `load_module`."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from ...base_dsl import packages, settings, target
from ...base_dsl import typing as numbers
from ...base_dsl.arguments import AMBIENT_STREAM, number_format, slot_struct
from ...base_dsl.compiled_function import CompiledFunction
from ...base_dsl.conventions import PYTHON, describe_key
from ...base_dsl.diagnostics import (
    DSLCudaRuntimeError,
    DSLRuntimeError,
    DSLUserCodeRuntimeError,
    DSLUserCodeValueError,
    DSLWarning,
)
from ...base_dsl.parameters import Parameters
from ...base_dsl.target import Executable
from ...cute.host import runtime
from ...cute.host.arguments import StreamNode, TensorNode
from ...cute.host.stream import current_stream
from ...cute.host.tensor_forms import DynamicLeaf, TensorSignature, signature
from ...cute.program.dsl import DSL
from ...cute.tensor.pointer import AddressSpace
from ...targets.host import elf, jit
from ...targets.host.exported import ARGUMENTS_DISAGREE, ASSERT
from ...targets.host.faults import AssertionFault
from ..arguments import plan
from ..c.entry import Failure
from ..tvm_ffi.exported import TVM_FFI
from .objects import ABI, META, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...base_dsl.arguments import Node


def _read(path: str, foreign: bool) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Read a file and the metadata of its functions; `foreign` allows files for other machines."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as reason:
        raise DSLRuntimeError(
            f"cannot load {path}: {reason.strerror}", hint="give the path of a file that export_to_c wrote"
        ) from None
    try:
        described = metadata(data, foreign)
    except elf.NotElf as reason:
        raise DSLRuntimeError(f"{path} {reason}", hint="export the function again") from None
    if not described:
        raise DSLRuntimeError(
            f"{path} has no functions that Kiln exported",
            hint="give an object that export_to_c wrote, or a library of such",
        )
    for about in described.values():
        if about["abi"] > ABI:
            exported = f"{path} was exported by Kiln {about['kiln']} with version {about['abi']} of the format"
            raise DSLRuntimeError(f"{exported}, and this Kiln knows versions up to {ABI}", hint="install a newer Kiln")
    return data, described


def read_metadata(file_path: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of the functions of an exported file, by name."""
    return _read(os.fspath(file_path), foreign=True)[1]


def load_module(file_path: Any, *, enable_tvm_ffi: bool = False) -> Any:
    """Load the functions of an exported object, or of a shared library linked from such objects."""
    path = os.fspath(file_path)
    data, described = _read(path, foreign=False)
    is_library = elf.File(data).kind == elf.SHARED
    if not is_whole(data):
        raise DSLRuntimeError(
            f"{path} is damaged, or was changed after it was exported: its checksum is not that of its contents",
            hint="export the function again, or link the object into a shared library",
        )
    if enable_tvm_ffi and is_library:
        return packages.load("tvm_ffi").load_module(os.path.abspath(path))
    if is_library:
        try:
            address_of = _opened(path)
        except OSError as reason:
            raise DSLRuntimeError(f"cannot load {path}: {reason}", hint="link it anew") from None
    else:
        address_of = _linked(data, described)
    if enable_tvm_ffi:
        return _tvm_module(path, described, address_of)
    DSL.caller.prepare()
    DSL.caller.wait()  # native code takes the calls, as those of compiled functions
    return Module(path, {name: _loaded(name, about, address_of) for name, about in described.items()})


def _loaded(name: str, about: dict[str, Any], address_of: Callable[[str], int]) -> Any:
    targets = about.get("targets", [about["target"]])
    functions = {each: LoadedFunction(name, {**about, "target": each}, address_of) for each in targets}
    return EitherDevice(functions) if len(functions) > 1 else functions[targets[0]]


class EitherDevice:
    """An exported function with code for GPUs and for the host: the first array decides which runs."""

    def __init__(self, functions: Mapping[str, LoadedFunction]) -> None:
        self.functions = functions

    def __call__(self, *args: object, **kwargs: object) -> Any:
        for value in (*args, *kwargs.values()):
            tell = getattr(value, "__dlpack_device__", None)
            if tell is not None:
                on_host = tell()[0] in (plan.CPU, plan.CUDA_HOST)
                return next(f for name, f in self.functions.items() if (name == "cpu") == on_host)(*args, **kwargs)
        usable = [f for name, f in self.functions.items() if target.get_target(name).available()]
        return usable[0](*args, **kwargs)

    def __repr__(self) -> str:
        return repr(next(iter(self.functions.values())))


class Module:
    """The functions of a file, as attributes."""

    def __init__(self, path: str, functions: Mapping[str, Any]) -> None:
        self._path = path
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            raise AttributeError(f"{self._path} has no function {name!r}; it has {', '.join(self._functions)}")
        return self._functions[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return list(self._functions)

    def __repr__(self) -> str:
        return f"<module of {self._path}: {', '.join(self._functions)}>"


# --- reading ---------------------------------------------------------------------------------------------------------


def metadata(data: bytes, foreign: bool) -> dict[str, dict[str, Any]]:
    """Return the metadata of an object or library by function; `foreign` allows any machine. Raises `elf.NotElf`."""
    file = elf.File(data)
    if file.kind not in (elf.RELOCATABLE, elf.SHARED):
        raise elf.NotElf("is neither an object nor a shared library")
    own = jit.host()[0].partition("-")[0]
    if file.machine != elf.MACHINES.get(own) and not foreign:
        names = {number: name for name, number in elf.MACHINES.items()}
        raise elf.NotElf(
            f"is for {names.get(file.machine, f'the machine {file.machine} of ELF')}, and this machine is {own}"
        )
    by_function: dict[str, dict[str, Any]] = {}
    symbols = file.symbols(elf.DYNSYM if file.kind == elf.SHARED else elf.SYMTAB)
    names = {symbol.name for symbol in symbols}
    for symbol in symbols:
        if symbol.name.startswith(META) and 0 < symbol.section < len(file.headers):
            header = file.headers[symbol.section]
            function = symbol.name.removeprefix(META)
            at = symbol.value - header.address + header.offset
            end = at + symbol.size
            by_function[function] = about = _parsed(data[at:end], len(data) >= end)
            if "entry_points" not in about:  # a file of the first format: its symbols tell
                about["entry_points"] = ["tvm_ffi"] if f"__tvm_ffi_{function}" in names else ["c"]
    return by_function


_FIELDS = {
    "abi": int,
    "kiln": str,
    "target": str,
    "signature": str,
    "slots": int,
    "result": list,
    "streams": int,
    "prints": bool,
    "arguments": list,
    "architectures": list,
    "function": str,
}


def _parsed(text: bytes, is_there: bool) -> dict[str, Any]:
    try:
        about = json.loads(text.rstrip(b"\0")) if is_there else None
    except ValueError:
        about = None
    if isinstance(about, dict) and isinstance(about.get("abi"), int) and about["abi"] > ABI:
        return {"kiln": "?", **about}  # its other fields are another version's
    if not isinstance(about, dict) or not all(isinstance(about.get(name), kind) for name, kind in _FIELDS.items()):
        raise elf.NotElf("is damaged: its metadata cannot be read")
    return about


def _opened(path: str) -> Callable[[str], int]:
    library = ctypes.CDLL(os.path.abspath(path))

    def address_of(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    return address_of


def _linked(data: bytes, described: Mapping[str, Any]) -> Callable[[str], int]:
    exports: list[str] = []
    for name, about in described.items():
        exports += [f"__kiln_slots_{name}", *([f"__tvm_ffi_{name}"] if "tvm_ffi" in about["entry_points"] else [])]
    try:
        library = jit.Library(data, tuple(exports), imports=_tvm_functions() if b"TVMFFI" in data else None)
    except RuntimeError as reason:
        raise DSLRuntimeError(f"the object cannot be loaded: {reason}", hint="export the function again") from None
    return lambda name: library.addresses[name]  # it keeps the code


def _tvm_functions() -> dict[str, int]:
    """Return addresses of TVM-FFI's functions that objects of the first release refer to; 0 for missing ones."""
    tvm_ffi = packages.loaded("tvm_ffi")
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()) if tvm_ffi is not None else ctypes.CDLL(None)
    functions = {name: getattr(library, name, None) for name in TVM_FFI.values()}
    return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 if f else 0 for name, f in functions.items()}


def _tvm_module(path: str, described: Mapping[str, Any], address_of: Callable[[str], int]) -> Module:
    from ..tvm_ffi.function import loaded  # imports TVM-FFI, an optional package

    functions = {
        name: loaded(address_of(f"__tvm_ffi_{name}"), address_of)
        for name, about in described.items()
        if "tvm_ffi" in about["entry_points"]
    }
    return Module(path, functions)


# --- calling ---------------------------------------------------------------------------------------------------------

_SLOTS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_void_p]


class _Exported(Executable):
    """The code of an exported function. Native code calls it as that of compiled functions, unless it prints."""

    artifacts: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self, name: str, about: Mapping[str, Any], address_of: Callable[[str], int]) -> None:
        self.address = address_of(f"__kiln_slots_{name}")
        self._run = _SLOTS(self.address)
        self._target = about["target"]
        self._prints = about["prints"]
        self._keep = address_of
        if not self._prints:
            self.report = self._report

    def call(self, address: int) -> None:
        if self._prints:
            sys.stdout.flush()  # it prints past Python
        failed = self._run(address)
        if failed:
            self._report(failed)

    def _report(self, record: int) -> None:
        failure = Failure.from_address(record)
        status = failure.status
        text = bytes(failure.text).partition(b"\0")[0].decode(errors="replace")
        _libc.free(record)
        raise _failure(status, text, self._target)


def _failure(status: int, text: str, on: str) -> Exception:
    if status == ARGUMENTS_DISAGREE:
        return DSLUserCodeValueError(text)
    if status == ASSERT:
        return AssertionFault(text)
    if on == "cpu":
        return DSLUserCodeRuntimeError(text)
    return DSLCudaRuntimeError(text, error_code=status)


class LoadedFunction(CompiledFunction):
    """An exported function, which takes the arguments that the compiled function took."""

    def __init__(self, name: str, about: dict[str, Any], address_of: Callable[[str], int]) -> None:
        arguments = about["arguments"]
        keys = {each["name"]: _key(each) for each in arguments if each["kind"] != "none"}
        # Files of the first format lack the places: there is one at most, after the arguments.
        places = about.get("stream_places", [len(arguments)] * min(about["streams"], 1))
        streams = [f"{AMBIENT_STREAM}{number or ''}" for number in range(len(places))]
        source: Any = types.SimpleNamespace(dsl=DSL, name=name)
        self.source = source
        self.parameters: Parameters = _parameters(name, arguments)
        self.executable: _Exported = _Exported(name, about, address_of)
        self.function_name = name
        self.names: list[Any] = [each["name"] for each in arguments]
        for before, (stream, place) in enumerate(zip(streams, places, strict=True)):
            self.names.insert(before + place, stream)
        keys |= dict.fromkeys(streams, StreamNode.key)
        self.keys: dict[Any, Any] = {each: keys[each] for each in self.names if each in keys}
        self.static: dict[Any, None] = {each["name"]: None for each in arguments if each["kind"] == "none"}
        self.passed: list[Any] = list(self.names)
        self.ambient: dict[str, Callable[[], Any]] = dict.fromkeys(streams, current_stream)
        self.key_tuple = tuple(self.keys.get(each, ()) for each in self.names)
        self.strength = 0
        formats = "".join(_formats(key) for key in self.keys.values())
        self._struct = slot_struct(formats)
        self.find_address_leaf([(_formats(key), isinstance(key, TensorSignature)) for key in self.keys.values()])
        self.slot_bytes: int = max(about["slots"], self._struct.size)
        self.results_at: int = about["result"][1]
        self.has_results: bool = about["result"][0] != plan.NO_RESULT
        self.returns_number: bool = self.has_results
        self.result_kinds: list[Any] = [_result_type(about["result"][0])] if self.has_results else []
        self._result_struct = slot_struct("".join(map(number_format, self.result_kinds)))
        self.static_result: None = None
        self.target: Any = about["target"]
        self.learned: Any = None
        self.convention = PYTHON
        self.host_target = ""

    def _fitted(self, arguments: dict[str, Any]) -> dict[str, Node]:
        with target.target(self.target):
            nodes = dict(zip(arguments, self.parameters.nodes(DSL, arguments), strict=True))
            for name, expected in self.keys.items():
                node = nodes[name]
                if node.key != expected:
                    fitted = node.fit(expected)
                    if isinstance(fitted, str):
                        if not self._takes_anyway(node, expected):
                            raise self._wrong_argument(name, node, expected, fitted)
                        what = f"argument {name!r} of {self.function_name} is {describe_key(node.key)}"
                        why = f"it was compiled for {describe_key(expected)}: its numbers are passed as they are"
                        warnings.warn(f"{what}, and {why}", DSLWarning, stacklevel=4)
                        fitted = node
                    nodes[name] = fitted
            return nodes

    def _takes_anyway(self, node: Node, expected: object) -> bool:
        """Return whether a tensor has the slots of another layout, whose code would read its numbers."""
        if not (isinstance(node, TensorNode) and isinstance(expected, TensorSignature)):
            return False
        if settings.get("KILN_AOT_STRICT"):
            return False
        key = node.key
        same = key.dtype is expected.dtype and len(key.shape) == len(expected.shape)
        reachable = key.memspace is expected.memspace or self.target == "cpu"
        return same and reachable and key.formats == expected.formats

    def __repr__(self) -> str:
        return f"<exported function {self.function_name}({', '.join(self.names)})>"


def _key(about: dict[str, Any]) -> Any:
    """Return the key of arguments that match."""
    kind = about["kind"]

    def leaf(x: object) -> Any:
        return DynamicLeaf(x["bits"], x["divisibility"]) if isinstance(x, dict) else x

    if kind == "tensor":
        shape, stride = (tuple(map(leaf, about[part])) for part in ("shape", "stride"))
        space = AddressSpace[about["memory"]]
        dtype = getattr(numbers, about["type"])
        promises = (about["readonly"], about.get("counted", True))
        return signature(dtype, space, about["alignment"], shape, stride, *promises)
    if kind == "pointer":
        return runtime.pointer_signature(
            getattr(numbers, about["type"]), AddressSpace[about["memory"]], about["alignment"]
        )[0]
    if kind == "stream":
        return StreamNode.key
    if kind == "number":
        return getattr(numbers, about["type"])
    return (tuple, *map(_key, about.get("elements", ())))  # compiled in and unknown here: matches nothing


def _formats(key: Any) -> str:
    """Return the `struct` formats of the slots of a key."""
    if isinstance(key, TensorSignature):
        return key.formats
    if isinstance(key, runtime.PointerSignature) or key == StreamNode.key:
        return "Q"
    if isinstance(key, tuple):
        return "".join(map(_formats, key[1:]))
    return number_format(key)


def _parameters(name: str, arguments: list[dict[str, Any]]) -> Parameters:
    def called(*args: Any, **kwargs: Any) -> None: ...

    called.__name__ = called.__qualname__ = name
    one = inspect.Parameter.POSITIONAL_OR_KEYWORD
    stub: Any = called
    stub.__signature__ = inspect.Signature([inspect.Parameter(each["name"], one) for each in arguments])
    called.__annotations__ = {
        each["name"]: getattr(numbers, each["type"]) for each in arguments if each["kind"] == "number"
    }
    return Parameters(stub)


def _result_type(kind: int) -> Any:
    """Return the type of a number that a function returns, by the word in its plan."""
    names = {plan.REAL32: "Float32", plan.REAL64: "Float64", plan.TRUTH: "Boolean"}
    sign = "Int" if kind & 0xFF == plan.SIGNED else "Uint"
    return getattr(numbers, names.get(kind & 0xFF) or f"{sign}{kind >> 8 << 3}")
