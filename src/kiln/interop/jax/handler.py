"""The native handler of this process, registered with XLA, and the calls that it knows by keys of their contents."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ..._support import fork_safe
from ...base_dsl.diagnostics import DSLBaseError, DSLUserCodeValueError, runtime_error
from ..arguments import loading, plan
from . import calls as xla

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...base_dsl.compiled_function import CompiledFunction

TARGET = "kiln_call"
UNCAPTURED = "kiln_call_uncaptured"
_targets = [TARGET, UNCAPTURED]
_calls_by_key: dict[bytes, Any] = {}
_ABI = 1
"""The version of what call sites carry."""
_lock = fork_safe.lock()


def get_export_disabled_safety_checks() -> Sequence[Any]:
    """Return `disabled_checks` for `jax.export.export`: the targets of calls, which JAX does not know to be stable."""
    from jax import export  # JAX before 0.7 does not load it by itself

    return [export.DisabledSafetyCheck.custom_call(name) for name in _targets]


@functools.lru_cache(maxsize=1)
def _addresses() -> dict[str, int]:
    loading.prepare()
    engine = loading.engine()
    if engine is None:
        why = "calls from JAX need native code, which is switched off or cannot run here"
        raise runtime_error(why, "unset KILN_NATIVE_CALLS")
    addresses = engine.load(xla.xla_library)
    ctypes.c_uint64.from_address(addresses["kiln_xla_loader"]).value = id(_load)
    return addresses


@functools.lru_cache
def register(name: str, platform: str, capturable: bool = True) -> None:
    """Register the handler with XLA under a name."""
    symbol = "kiln_xla_call" if capturable else "kiln_xla_call_uncaptured"
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_addresses()[symbol])
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform=platform, api_version=1)
    if name not in _targets:
        _targets.append(name)


class Source(NamedTuple):
    """The source of a leaf's value (`calls.Source`)."""

    kind: int
    index: int
    mismatch: str
    """The message if it does not match."""
    order: tuple[int, ...] = ()
    major: tuple[int, ...] = ()


def add(compiled: CompiledFunction[Any], sources: Sequence[Source]) -> HandledCall | None:
    """Add a compiled function to the handler; None if only Python can call it."""
    caller_plan = getattr(compiled, "for_caller", None)
    if caller_plan is None:
        return None
    handled = HandledCall(compiled.function_name, compiled.target, str(compiled.__mlir__), caller_plan, sources)
    handled.add(compiled.reporter(), compiled)
    return handled


class HandledCall:
    """A compiled function as the handler knows it, without addresses of this process."""

    def __init__(self, name: str, target: str, module: str, plan_: bytes, sources: Sequence[Source]) -> None:
        self.name = name
        self.target = target
        self.module = module
        self.plan = plan_
        self.sources = sources
        contents = [module, target, repr(list(map(tuple, sources)))]
        self.key: bytes = hashlib.sha256("\0".join(contents).encode()).digest()

    def add(self, report: object, owner: Any) -> None:
        """Add it to the handler, once. `owner` keeps the code alive."""
        with _lock:
            if self.key in _calls_by_key:
                return
            text_of = functools.partial(_error_text, report)
            texts = [ctypes.create_string_buffer(f"{self.name}: {each.mismatch}".encode()) for each in self.sources]
            listed = [
                xla.Source(each.kind, each.index, ctypes.addressof(text), tuple(each.order), tuple(each.major))
                for each, text in zip(self.sources, texts, strict=True)
            ]
            head = xla.Call(plan=plan.address_of(self.plan), report=id(text_of))
            head.key[:] = (ctypes.c_uint64 * 4).from_buffer_copy(self.key)
            memory = ctypes.create_string_buffer(bytes(head) + b"".join(map(bytes, listed)))
            _added()(ctypes.addressof(memory))
            _calls_by_key[self.key] = memory, texts, text_of, self.plan, owner

    def packed(self) -> bytes:
        """Return it for other processes, which compile the module for their machine."""
        facts = {"abi": _ABI, "name": self.name, "target": self.target, "sources": list(self.sources)}
        texts = (json.dumps(facts).encode(), self.plan, self.module.encode())
        return zlib.compress(b"".join(len(text).to_bytes(8, "little") + text for text in texts))

    @staticmethod
    def unpacked(data: bytes) -> HandledCall:
        data = zlib.decompress(data)
        parts = []
        while data:
            size = int.from_bytes(data[:8], "little")
            parts.append(data[8 : 8 + size])
            data = data[8 + size :]
        facts = json.loads(parts[0])
        if facts["abi"] > _ABI:
            raise ValueError(
                f"it was exported by a newer Kiln: version {facts['abi']} of the format, and this one reads {_ABI}"
            )
        sources = [Source(*each[:3], *map(tuple, each[3:])) for each in facts["sources"]]
        return HandledCall(facts["name"], facts["target"], parts[2].decode(), parts[1], sources)


def _load(data: bytes) -> str | None:
    """Compile the code that a call site carries. Returns what is wrong, if anything."""
    try:
        from ...base_dsl.compiled_function import reported
        from ...cute.program.dsl import DSL
        from ...mlir import context, ir, require_dialect

        handled = HandledCall.unpacked(data)
        for dialect in DSL.dialects():
            require_dialect(dialect)
        with context(), ir.Location.unknown():
            module = ir.Module.parse(handled.module)
        executable = DSL.compile_module(module, handled.name, None, handled.target)
        head = plan.Plan.from_buffer_copy(handled.plan)
        head.entry = executable.address
        head.names = 0
        head.guards = 0
        head.value = 0
        head.report = 0
        head.owner = 0
        handled.plan = bytes(head) + handled.plan[ctypes.sizeof(plan.Plan) :]
        assert executable.report is not None
        handled.add(functools.partial(reported, executable.report, ""), executable)
    except Exception as failure:
        return f"the exported kernel cannot be loaded: {failure}"
    return None


@functools.lru_cache(maxsize=1)
def _added() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_addresses()["kiln_xla_add"])


def _error_text(report: Any, record: int) -> str | bytes | None:
    """Return the text of the error that a call reported; None without one, bytes if an argument is wrong.

    What the call printed is printed here.
    """
    try:
        report(record)
    except DSLUserCodeValueError as failure:
        return str(failure).encode()
    except DSLBaseError as failure:
        return str(failure)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


def attributes(call: HandledCall, numbers: Sequence[int], for_export: bool) -> dict[str, Any]:
    """Return the attributes of a call site; `for_export` with the code for other processes."""
    carried: dict[str, Any] = {
        "kiln_key": np.frombuffer(call.key, np.uint64),
        "kiln_args": np.array([number & (1 << 64) - 1 for number in numbers] or [0], np.uint64),
    }
    if for_export:
        carried["kiln_code"] = np.frombuffer(call.packed(), np.uint8)
    return carried


for _platform in ("cpu", "CUDA"):  # calls exported elsewhere come before anything was compiled here
    register(TARGET, _platform)
    register(UNCAPTURED, _platform, capturable=False)
