"""Writes exported functions: `export_to_c` writes compiled ones, `kiln.export` compiles for several architectures."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import DSLRuntimeError, type_error
from ...base_dsl.options import HostTarget, parsed_host_target
from ..arguments import plan
from ..c.header import check_name, declaration, header
from ..c.signature import signature_of
from ..options import EnableTVMFFI
from .conventions import CONVENTIONS, EntryPoints
from .objects import ABI, build, library_file, object_file, processor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...base_dsl.compiled_function import CompiledFunction
    from ...targets.host.elf import Object
    from ...targets.host.exported import Portable


def version() -> str:
    """Return the version of Kiln."""
    return sys.modules[__name__.partition(".")[0]].__version__


def export_to_c(
    compiled: CompiledFunction[Any],
    file_path: Any,
    file_name: str = "",
    function_prefix: str = "",
    *,
    function_name: str = "",
) -> None:
    """Write `file_path/file_name.o` and `.h` for C, or with `function_name` the object `file_path` for TVM-FFI."""
    path = os.fspath(file_path)
    if function_name:
        if file_name or function_prefix:
            raise type_error(
                "export_to_c takes a folder, a file name and a prefix for C, or the path of an object and a function "
                "name for TVM-FFI",
                "pass either file_name and function_prefix, or function_name",
            )
        built, _ = object_and_header([compiled], EntryPoints(tvm_ffi=check_name(function_name, "function name")))
        write_whole(path, object_file(built))
        return
    if not file_name:
        raise type_error(
            "export_to_c got no file_name",
            'export_to_c("build", "gemm") for C, export_to_c("build/gemm.o", function_name="gemm") for TVM-FFI',
        )
    if os.path.basename(file_name) != file_name or file_name in (".", "..") or "\0" in file_name:
        raise type_error(
            f"export_to_c got the file name {file_name!r}, which leads out of the folder {path}",
            "name the folder first: export_to_c(folder, name)",
        )
    prefix = check_name(function_prefix or file_name, "prefix")
    built, text = object_and_header([compiled], EntryPoints(c=prefix))
    with contextlib.suppress(FileExistsError), _explained(path):
        os.makedirs(path, exist_ok=True)
    write_whole(os.path.join(path, f"{file_name}.o"), object_file(built))
    write_whole(os.path.join(path, f"{file_name}.h"), text.encode())


def export(
    function: Any,
    *args: Any,
    to: Any,
    name: str = "",
    archs: Sequence[str] | str = (),
    ptx: bool = True,
    entry_points: Iterable[str] | str = "c",
    outputs: Mapping[str, object] | None = None,
    mutates: Sequence[str] | None = None,
    host: str = "",
    options: object = None,
    **kwargs: Any,
) -> list[str]:
    """Compile a function for several architectures and write one file. Returns the paths of the files written.

    `to` is an object (`.o`), a shared library (`.so`) or a folder, for `name.o`; a C header is written beside it.
    `name` is by default that of the file; `mylib::name` also names PyTorch's operator, which is else `kiln::name`.
    `archs` are such as `("sm_80", "sm_90a")`, `("cpu",)` or both, by default what this process compiles for; `ptx` adds
    PTX for later GPUs to plain architectures. `entry_points` are the calling conventions: "c", "tvm_ffi", "torch",
    "jax". Both may be one string with commas. `outputs` and `mutates` are as for `kiln.torch.op`: parameters that are
    results, each with the input it is like or its extents, and those that the kernel writes to. `host` is a machine as
    `--host-target` takes it; other arguments are those of `cute.compile`. An operator of `kiln.torch.op` brings its own
    name, outputs and mutates.
    """
    from ...cute.program.compiling import compile
    from ...hardware.options import GPUArch

    if hasattr(function, "export_to_c"):
        raise type_error(
            "kiln.export got a function that is compiled already, and compiles for each architecture itself",
            "kiln.export(function, *arguments, to=...), or compiled.export_to_c(...)",
        )
    conventions, archs = (
        [part.strip() for part in each.split(",") if part.strip()] if isinstance(each, str) else list(each)
        for each in (entry_points, archs or ())
    )
    archs = archs or [""]
    operator = getattr(function, "for_export", None)
    if operator is not None:
        function, name_of_operator, outputs, mutates = operator
        name = name or name_of_operator
        conventions = dict.fromkeys([*conventions, "torch"])
    path = os.fspath(to)
    stem, kind = os.path.splitext(path)
    namespace, _, name = name.rpartition("::")
    if kind not in (".o", ".so"):
        if not name:
            raise type_error(
                f"kiln.export into the folder {path} needs a name", "name=..., or to= a file that ends in .o or .so"
            )
        stem = os.path.join(path, name)
        kind = ".o"
    name = check_name(name or os.path.basename(stem).removeprefix("lib" if kind == ".so" else ""), "name")
    namespace = check_name(namespace or "kiln", "namespace")
    unknown = [each for each in conventions if each not in CONVENTIONS]
    if unknown or not conventions:
        problem = f"got the entry point {unknown[0]!r}" if unknown else "got no entry point: nobody could call the file"
        raise type_error(f"kiln.export {problem}", f"entry_points= of {', '.join(CONVENTIONS)}")
    names = EntryPoints(
        **{each: f"{namespace}::{name}" if each == "torch" else name for each in conventions},
        outputs=dict(outputs or {}),
        mutates=mutates,
    )
    if host:
        parsed_host_target(host, "host=")
    common = [options, EnableTVMFFI(True) if "tvm_ffi" in conventions else None, HostTarget(host) if host else None]
    compiled: list[CompiledFunction[Any]] = []
    for arch in archs:
        chosen = [GPUArch(arch)] if arch not in ("", "cpu") else []
        target = {"": None, "cpu": "cpu"}.get(arch, "nvidia")
        jitted = compile(function, *args, options=[*common, *chosen], target=target, **kwargs)
        compiled.append(getattr(jitted, "compiled", jitted))
    object_, text = object_and_header(compiled, names, ptx)
    with _explained(os.path.dirname(path)):
        os.makedirs(os.path.dirname(stem) or ".", exist_ok=True)
    written = [stem + kind]
    write_whole(written[0], library_file(object_) if kind == ".so" else object_file(object_))
    if text:
        written.append(f"{stem}.h")
        write_whole(written[1], text.encode())
    return written


def portable_of(compiled: CompiledFunction[Any], ptx: bool = True) -> Portable:
    """Return the code of a compiled function; refuses code that runs in this process only."""
    portable = compiled.executable.portable(ptx)
    if portable is None:
        raise type_error(
            f"{compiled.function_name} is instrumented code, which cannot be exported",
            "compile it without the sanitizer",
        )
    return portable


def object_and_header(
    compiled: Sequence[CompiledFunction[Any]], names: EntryPoints, ptx: bool = True
) -> tuple[Object, str]:
    """Return a function, compiled for one or more architectures, as an object, and its C header, if it has one."""
    targets = list(dict.fromkeys(each.target for each in compiled))
    signatures = [signature_of(each, targets) for each in compiled]
    signature = signatures[0]
    function = compiled[0].function_name
    for each, other in zip(compiled, signatures, strict=True):
        if other != signature:
            raise type_error(
                f"{function} takes other arguments on the target {each.target!r} than on {compiled[0].target!r}",
                "write two files",
            )
    names.check(signature)
    if names.c:
        if signature.results[0] != plan.NO_RESULT:
            raise type_error(
                f"{function} returns a number, and functions of C return whether they failed",
                "write it to a tensor, or export the function for TVM-FFI",
            )
        for each in signature.parameters:
            if each.is_in_c:
                declaration(names.c, each)  # refuses parameters without a form in C
    portables = [portable_of(each, ptx) for each in compiled]
    architectures = [each.architecture for each in portables]
    processor = processor_of(compiled[0].host_target)
    traced = hashlib.blake2b("\0".join(str(each.__mlir__) for each in compiled).encode(), digest_size=16)
    metadata = {
        "abi": ABI,
        "kiln": version(),
        "function": function,
        "target": compiled[0].target,
        "targets": targets,
        "host": processor[0],
        "architectures": architectures,
        "signature": signature.text,
        "slots": signature.slots_bytes,
        "result": list(signature.results),
        "streams": len(signature.ambient),
        "stream_places": signature.stream_places,
        "prints": any(each.prints for each in portables),
        "entry_points": names.conventions,
        "arguments": [{"name": each.name, **each.about} for each in signature.parameters],
        "doc": inspect.getdoc(getattr(compiled[0].source, "function", None)) or "",
        "outputs": dict(names.outputs),
        "schema": names.schema(signature) if names.torch else "",
        "traced": traced.hexdigest(),
        "sizes": {each.architecture: each.image_bytes for each in portables},
    }
    built = build(portables, signature, processor, metadata, names)
    return built, header(names.c, signature, version(), architectures) if names.c else ""


@contextlib.contextmanager
def _explained(path: str) -> Any:
    try:
        yield
    except OSError as reason:
        raise DSLRuntimeError(
            f"cannot write {path}: {reason.strerror}", hint="name a folder that can be written"
        ) from None


def write_whole(path: str, data: bytes) -> None:
    """Write a file, whole or not at all."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{threading.get_ident()}")
    with _explained(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
