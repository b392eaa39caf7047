"""`CompiledFunction`: code for one specialization of a function, called with the arguments that are not Constexpr."""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import struct
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._support import notebook
from . import conventions, settings, tree
from .arguments import AMBIENT_STREAM, ARGUMENT_CHECKS, GroupNode, Node, StaticNode, number_format, slot_struct
from .conventions import PYTHON, Convention, brief_key
from .diagnostics import DSLBaseError, DSLUserCodeTypeError, DSLUserCodeValueError, error, type_error
from .dsl import Traced, shorten_traceback
from .numeric import host
from .static_key import static_key
from .target import Executable, Target, get_target, slot_layout, target_name
from .target import target as choose_target
from .typing import Numeric

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from .function import JitFunction
    from .parameters import Parameters

R_co = TypeVar("R_co", covariant=True)


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.size = 4096
        self.buffer = ctypes.create_string_buffer(self.size)
        self.address = ctypes.addressof(self.buffer)

    def at_least(self, size: int) -> Any:
        if size > self.size:
            self.size = size
            self.buffer = ctypes.create_string_buffer(size)
            self.address = ctypes.addressof(self.buffer)
        return self.buffer


_buffers = _Buffers()


class CompiledFunction(notebook.Shown, Generic[R_co]):
    """A compiled specialization: call it with the arguments that are not Constexpr.

    `__mlir__`, `__llvm__`, ... are its artefacts, None where the target has none. The slot `for_caller` belongs to
    the language's caller.
    """

    __slots__ = ("__dict__", "__weakref__", "for_caller")
    __kiln_static__ = True
    written_slots: frozenset[int] = frozenset()
    """The offsets of slots with addresses of arrays that the code is known to write to."""
    written_paths: Sequence[tuple[int, ...]] = ()
    """Where these arrays are among the arguments: the number of one, then indices into tuples and lists."""

    def __init__(
        self,
        source: JitFunction[..., Any],
        names: list[str],
        nodes: list[Node],
        traced: Traced,
        executable: Executable,
        target: str,
        written: frozenset[int],
    ) -> None:
        self.source = source
        self.parameters: Parameters = source.parameters
        self.executable = executable
        self.function_name: str = traced.entry
        self.names = names
        self.keys: dict[str, Hashable] = {
            name: node.key for name, node in zip(names, nodes, strict=True) if not isinstance(node, StaticNode)
        }
        self.static: dict[str, Any] = {
            name: node.value for name, node in zip(names, nodes, strict=True) if isinstance(node, StaticNode)
        }
        self._adapters = {
            name: adapt
            for name, node in zip(names, nodes, strict=True)
            if not isinstance(node, StaticNode) and (adapt := node.adapter()) is not None
        }
        self._views = {name: view for name, node in zip(names, nodes, strict=True) if (view := node.view()) is not None}
        annotation = source.parameters.annotation
        self.passed: list[str] = [
            name
            for name in names
            if name not in self.static
            or (self.static[name] is None and not source.dsl.is_static_annotation(annotation(name)))
        ]
        """The names of the arguments that calls pass: all but Constexpr. An argument that was None keeps its place."""
        self.ambient: dict[str, Callable[[], Any]] = {
            name: node.ambient for name, node in zip(names, nodes, strict=True) if node.ambient
        }
        self.key_tuple: tuple[Hashable, ...] = tuple(node.key for node in nodes)
        self.strength: int = sum(node.strength for node in nodes)
        self.find_address_leaf([(node.formats, node.is_array) for node in nodes])
        self.stream_leaf: int | None = _leaf_of([(node.formats, node.is_stream) for node in nodes])
        """The leaf with the handle of the stream; None where calls pass none."""
        self._struct = slot_struct("".join(node.formats for node in nodes))
        self.slot_bytes: int
        offsets, self.slot_bytes = slot_layout([*traced.argument_types, *traced.result_types])
        if written:
            self.written_slots = frozenset(offsets[number] for number in written)
            self.written_paths = _written_paths(nodes, written)
        self.results_at: int = offsets[len(traced.argument_types)] if traced.result_types else 0
        self._result_struct = slot_struct("".join(number_format(kind) for kind in traced.result_kinds))
        self.result_kinds: list[Any] = traced.result_kinds
        # The common case: one number of a type that struct knows.
        self.returns_number: bool = traced.returns_number and bool(traced.result_kinds[0]._struct_format)
        self._rebuild = traced.rebuild
        self.has_results: bool = bool(traced.result_types)
        # What the trace returned is rebuilt from results; without results it is static.
        self.static_result: Any = None if self.has_results else traced.rebuild(iter(()))
        self.target = target
        self.learned: Any = None
        """What the language's caller knows of it."""
        self.convention: Convention = PYTHON
        """How it is called."""
        self.host_target = ""
        """The machine it is exported for; empty: one like this."""

    def _run_in_python(self, *args: object, **kwargs: object) -> Any:
        if target_name() != self.target:  # where arrays must be is a matter of the target that it was compiled for
            with choose_target(self.target):
                return self._run_in_python(*args, **kwargs)
        self.source.dsl.caller.learn_compiled(self, (*args, *kwargs.values()))
        try:
            if not kwargs and not self.static:
                quick = self.parameters.quick(self.source.dsl, args)
                if quick is not None and quick[0] == self.key_tuple:
                    self.note_writes(args)
                    return self.run_leaves(quick[1])
            arguments = self._bind(args, kwargs)
            nodes = self._fitted(arguments)
            self.note_writes(arguments.values())
            return self.run_leaves([leaf for node in nodes.values() for leaf in node.leaves()])
        except DSLBaseError as failure:
            as_seen = shown(failure, self.convention.complaint(self))
            if as_seen is failure:
                raise
            raise as_seen from None

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> R_co:
            """Run the compiled code; arguments are those of the function that are not Constexpr."""
            ...
    else:
        __call__ = _run_in_python

    def _fitted(self, arguments: dict[str, Any]) -> dict[str, Node]:
        """Return the nodes of arguments, each fitted to what the code was compiled for."""
        if self.convention.plain_tuples:
            for name, adapt in self._adapters.items():
                if name in arguments:
                    arguments[name] = adapt(arguments[name])
        for name, view in self._views.items():
            if name in arguments:
                arguments[name] = view(arguments[name])
        absent = [name for name, value in self.static.items() if value is None]
        argument_nodes = self.parameters.nodes(self.source.dsl, arguments, takes_none=absent)
        nodes = dict(zip(arguments, argument_nodes, strict=True))
        for name, node in nodes.items():
            expected = self.keys.get(name)
            if expected is not None and node.key != expected:
                fitted = node.fit(expected)
                if isinstance(fitted, str):
                    raise self._wrong_argument(name, node, expected, fitted)
                nodes[name] = fitted
        return nodes

    def leaves_of(self, args: Sequence[object]) -> list[list[Any]]:
        """Return the leaves of each argument that is not compiled in, which `run_leaves` takes one after another."""
        passed_values = dict(zip([name for name in self.names if name not in self.static], args, strict=True))
        nodes = self._fitted({name: passed_values.get(name, self.static.get(name)) for name in self.names})
        return [list(node.leaves()) for name, node in nodes.items() if name in passed_values]

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        dynamic = [name for name in self.passed if name != AMBIENT_STREAM]
        if len(args) > len(dynamic):
            passed_values = self.parameters.bind(args, kwargs) if len(args) <= len(dynamic) + len(self.static) else None
            if passed_values is None:
                raise type_error(
                    f"{self.function_name} was compiled to take {len(dynamic)} arguments ({', '.join(dynamic)}), not {len(args)}",
                    "Constexpr arguments are compiled in and no longer passed",
                )
            self._check_static(passed_values)
            return passed_values | self._ambient_stream()
        passed = [name for name in dynamic if name not in self.ambient]
        if len(args) > len(passed):
            passed = dynamic  # streams of the environment may be passed, too
        passed_values = dict(zip(passed, args, strict=False))
        for name, value in kwargs.items():
            if name in passed_values or name not in self.names:
                what = "twice" if name in passed_values else "but has no such parameter"
                raise type_error(f"{self.function_name} got {name!r} {what}", f"it takes {', '.join(dynamic)}")
            passed_values[name] = value
        self._check_static(passed_values)
        missing = [n for n in dynamic if n not in passed_values and n not in self.static]
        defaults = self.parameters.signature.parameters
        passed_values |= self._ambient_stream()
        for name in list(missing):
            if name in self.ambient:
                passed_values[name] = self.ambient[name]()
                missing.remove(name)
            elif name in defaults and defaults[name].default is not defaults[name].empty:
                passed_values[name] = defaults[name].default
                missing.remove(name)
        if missing:
            raise type_error(
                f"{self.function_name} needs {', '.join(missing)}", f"it was compiled to take {', '.join(dynamic)}"
            )
        return {n: passed_values.get(n, self.static.get(n)) for n in self.names}

    def _ambient_stream(self) -> dict[str, Any]:
        """Return the stream of launches that name none, if it is an argument."""
        return {name: of() for name, of in self.ambient.items() if name == AMBIENT_STREAM}

    def _check_static(self, passed_values: Mapping[str, object]) -> None:
        """Refuse another value where one was compiled in."""
        for name in passed_values.keys() & self.static.keys():
            now = passed_values[name]
            compiled = self.static[name]
            if now is not compiled and static_key(now) != static_key(compiled):
                raise type_error(
                    f"argument {name!r} of {self.function_name} was {compiled!r} when it was compiled, and is {_brief(now)} now",
                    f"pass {'None' if compiled is None else 'the same, or leave it out'}, or compile again for this one",
                )

    def _wrong_argument(self, name: str, node: Node, expected: object, why: str) -> Exception:
        return error(
            DSLUserCodeValueError if why else DSLUserCodeTypeError,
            self.convention.mismatch(self, name, node.key, expected, why),
            hint="pass an argument of the same type, or compile again for this one",
        )

    def find_address_leaf(self, arguments: Sequence[tuple[str, bool]]) -> None:
        """Find the leaf with the address of the first array, on whose device kernels are launched.

        `arguments` are the formats of each argument's leaves, and whether it is an array.
        """
        self._address_leaf: int | None = _leaf_of(arguments)

    def note_writes(self, values: Iterable[object]) -> None:
        """Tell frameworks which of the arrays among all arguments of a call are written to."""
        if not self.written_paths:
            return
        arguments = list(values)
        for path in self.written_paths:
            value: Any = arguments
            for place in path:
                value = value[place] if isinstance(value, (tuple, list)) else None
            self.source.dsl.caller.note_write(value)

    @functools.cached_property
    def _launches_on(self) -> Target:
        return get_target(self.target)

    def run_leaves(self, leaves: list[Any]) -> Any:
        """Call with the leaves of arguments that are known to fit."""
        buffers = _buffers
        buffer = buffers.buffer if buffers.size >= self.slot_bytes else buffers.at_least(self.slot_bytes)
        self._struct.pack_into(buffer, 0, *leaves)
        on = self._launches_on
        if self._address_leaf is not None and on.several_devices():
            with on.device(on.device_of(leaves[self._address_leaf])):
                self.executable.call(buffers.address)
        else:
            self.executable.call(buffers.address)
        if not self.has_results:
            return self.static_result
        values = self._result_struct.unpack_from(buffer, self.results_at)
        if self.returns_number:
            return values[0]
        values = [
            host.from_bits(kind, int.from_bytes(v, "little") & ((1 << kind.width) - 1)) if isinstance(v, bytes) else v
            for kind, v in zip(self.result_kinds, values, strict=True)
        ]
        return _plain(self._rebuild(iter(values)))

    def get_aux_func(self, kind: Any, **of: Any) -> Any:
        """Return a function that belongs to this one: `kind(self, **of)`, such as one that tells what memory it needs."""
        return kind(self, **of)

    def reporter(self) -> Callable[[int], None] | None:
        """Return the handler of what code at `executable.address` returns if not 0; None if only Python can run it."""
        report = self.executable.report
        return None if report is None else functools.partial(reported, report, self.convention.complaint(self))

    def packed(self, leaves: Sequence[object]) -> tuple[bytes, list[tuple[int, str]]]:
        """Return the slots of some leaves, and for each leaf its offset and the `struct` format of its number."""
        places: list[tuple[int, str]] = []
        offset = 0
        for text in _FORMATS.findall(self._struct.format[1:]):
            places.append((offset, text[0]))
            offset += struct.calcsize("<" + text)
        return self._struct.pack(*leaves), places

    def export_to_c(
        self,
        file_path: object = None,
        file_name: str = "",
        function_prefix: str = "",
        *,
        function_name: str = "",
        object_file_path: object = None,
    ) -> None:
        """Write it as an object file that needs neither Python nor Kiln.

        The files are `file_path/file_name.o` and a header for C, with `function_prefix` in all names; or, with
        `function_name`, the object `file_path` (or `object_file_path`) for TVM-FFI.
        """
        if (file_path is None) == (object_file_path is None):
            raise type_error("export_to_c takes a file_path, or an object_file_path with a function_name: one of them")
        file_path = object_file_path if file_path is None else file_path
        conventions.exporter().export_to_c(self, file_path, file_name, function_prefix, function_name=function_name)

    def _facts(self) -> tuple[str, list[tuple[str, ...]]]:
        """Return the signature with what is compiled in, and the resources of each kernel."""
        passed = [f"{name}: {brief_key(self.keys.get(name))}" for name in self.passed if name != AMBIENT_STREAM]
        compiled_in = [f"{name}={_brief(value)}" for name, value in self.static.items() if name not in self.passed]
        with_values = f", compiled for {', '.join(compiled_in)}" if compiled_in else ""
        signature = f"{self.source.name}({', '.join(passed)}) on the target {self.target}{with_values}"
        rows = [
            (str(one.registers), f"{one.spill_stores + one.spill_loads} B", f"{one.smem} B", f"{one.stack} B", name)
            for name, one in self.resources.items()
        ]
        return signature, rows

    def __repr__(self) -> str:
        return f"<compiled {self._facts()[0]}>"

    def __str__(self) -> str:
        signature, rows = self._facts()
        wide = [f"{cells[-1]}: " + ", ".join(map("{} {}".format, _RESOURCES, cells[:-1])) for cells in rows]
        return "\n".join([signature, *wide])

    def _as_html(self) -> str:
        signature, rows = self._facts()
        table = notebook.table((*_RESOURCES, "kernel"), rows, numbers=len(_RESOURCES)) if rows else ""
        return notebook.page(notebook.source(signature), table)

    def __getattr__(self, name: str) -> Any:
        kind = name[2:-2]
        if name == f"__{kind}__" and (kind == "mlir" or kind in settings.KEEPABLE):
            return self.executable.artifacts.get(kind)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def resources(self) -> Mapping[str, Any]:
        """The `registers`, `spill_stores`, `spill_loads`, `stack` and `smem` of each kernel; empty if not known."""
        return getattr(self.executable, "resources", {})

    @property
    def artifacts(self) -> Mapping[str, Any]:
        """Every artefact by name, rendered when first used."""
        return self.executable.artifacts


_RESOURCES = ("registers", "spills", "shared memory", "local memory")


def _leaf_of(arguments: Sequence[tuple[str, bool]]) -> int | None:
    """Return the first leaf of the first argument that is marked; `arguments` are the formats of leaves, and marks."""
    first = itertools.accumulate((len(_FORMATS.findall(formats)) for formats, _ in arguments), initial=0)
    return next((number for number, (_, is_marked) in zip(first, arguments) if is_marked), None)


def _written_paths(nodes: Sequence[Node], written: frozenset[int]) -> list[tuple[int, ...]]:
    """Return the paths (see `CompiledFunction.written_paths`) of arrays whose address is a leaf in `written`."""
    paths: list[tuple[int, ...]] = []
    before = 0

    def walk(node: Node, path: tuple[int, ...]) -> None:
        nonlocal before
        if isinstance(node, GroupNode):
            for place, child in enumerate(node.children):
                walk(child, (*path, place))
        else:
            if before in written:
                paths.append(path)
            before += len(node.types())

    for number, node in enumerate(nodes):
        walk(node, (number,))
    return paths


_FORMATS = re.compile(r"[0-9]*[a-zA-Z?](?:[0-9]x)?")
"""The `struct` formats of slots, one by one."""


def shown(failure: DSLBaseError, complaint: str) -> DSLBaseError:
    """Return an error of a call as the caller sees it; `complaint` as `Convention.complaint` gives it."""
    shorten_traceback(failure)
    if isinstance(failure, DSLUserCodeValueError) or not failure.message.endswith(ARGUMENT_CHECKS):
        return failure
    message = complaint + failure.message.removeprefix("assertion failed: ")
    return DSLUserCodeValueError(message, hint=failure.hint, span=failure.span)


def reported(report: Callable[[int], None], complaint: str, record: int) -> None:
    """Pass what compiled code returned to a target's `report`, and raise its error as the caller should see it."""
    try:
        report(record)
    except DSLBaseError as failure:
        as_seen = shown(failure, complaint)
        if as_seen is failure:
            raise
        raise as_seen from None


def _brief(value: object) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else f"a {type(value).__name__}"


def _plain(x: object) -> Any:
    """Return a returned structure with Python numbers in place of typed ones."""
    if isinstance(x, Numeric):
        return x.value if not tree.is_mlir_value(x.value) else x
    if isinstance(x, list):
        return [_plain(e) for e in x]
    if isinstance(x, tuple):
        return tree.rebuild_tuple(x, [_plain(e) for e in x])
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    if tree.is_plain_object(x):
        return tree.copy_with(x, {k: _plain(v) for k, v in tree.attributes_of(x).items()})
    return x
