"""`export_to_c` of compiled functions, and `kiln.export`: from a function to files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeTypeError, error
from ..base_dsl.options import EnableTVMFFI, HostTarget
from ..calls import plan
from .header import check_name, declaration, header
from .objects import ABI, build, processor_of
from .signature import signature_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base_dsl.function import CompiledFunction
    from ..targets.host.exported import Portable


def version() -> str:
    """Kiln's."""
    return sys.modules[__name__.partition(".")[0]].__version__


def export_to_c(
    compiled: CompiledFunction,
    file_path: Any,
    file_name: str = "",
    function_prefix: str = "",
    *,
    function_name: str = "",
) -> None:
    """Write `file_path/file_name.o` and `.h` for C; with `function_name`, the object `file_path` for TVM-FFI."""
    path = os.fspath(file_path)
    if function_name:
        if file_name or function_prefix:
            raise error(
                DSLUserCodeTypeError,
                "export_to_c takes a folder, a file name and a prefix (for C), or the path of an object and a function name (for TVM-FFI)",
                hint="leave out one of the two",
            )
        write_whole(path, objects_of([compiled], tvm_ffi=check_name(function_name, "function name")))
        return
    if not file_name:
        raise error(
            DSLUserCodeTypeError,
            "export_to_c needs the name of the files",
            hint='export_to_c("build", "gemm") for C, export_to_c("build/gemm.o", function_name="gemm") for TVM-FFI',
        )
    prefix = check_name(function_prefix or file_name, "prefix")
    data, text = object_and_header([compiled], prefix)
    os_errors = contextlib.suppress(FileExistsError)
    with os_errors, _explained(path):
        os.makedirs(path, exist_ok=True)
    write_whole(os.path.join(path, f"{file_name}.o"), data)
    write_whole(os.path.join(path, f"{file_name}.h"), text.encode())


def export(
    function: Any,
    *args: Any,
    to: Any,
    name: str = "",
    archs: Sequence[str] = (),
    ptx: bool = True,
    doors: Sequence[str] = ("c",),
    host: str = "",
    options: Any = None,
    **kwargs: Any,
) -> list[str]:
    """Compile a function for several architectures and write one file; the paths of what was written.

    `to` is an object (`.o`), a shared library (`.so`, which takes a linker) or a folder, for `name.o`; a header for C comes beside it.
    `name` is that of the file unless given. `archs`: `("sm_80", "sm_90a")` or `("cpu",)`, by default what this process
    compiles for; `ptx` adds what later GPUs can run, for plain architectures. `doors` are "c" and "tvm_ffi", `host` is a
    machine as `--host-target` takes it; other arguments are those of `cute.compile`.
    """
    from ..cute.program.compiling import compile
    from ..hardware.options import GPUArch

    path = os.fspath(to)
    stem, kind = os.path.splitext(path)
    if kind not in (".o", ".so"):
        if not name:
            raise error(DSLUserCodeTypeError, f"kiln.export into the folder {path} needs a name", hint="name=...")
        stem, kind = os.path.join(path, name), ".o"
    name = check_name(name or os.path.basename(stem).removeprefix("lib" if kind == ".so" else ""), "name")
    unknown = [door for door in doors if door not in ("c", "tvm_ffi")]
    if unknown or not doors:
        raise error(
            DSLUserCodeTypeError, f"kiln.export has no door {unknown[0] if unknown else ''!r}", hint='"c", "tvm_ffi"'
        )
    if "cpu" in archs and len(archs) > 1:
        raise error(
            DSLUserCodeTypeError, "one file is for GPUs or for the CPU target, not for both", hint="write two files"
        )
    common = [options, EnableTVMFFI(True) if "tvm_ffi" in doors else None, HostTarget(host) if host else None]
    compiled: list[CompiledFunction] = []
    for arch in archs or ("",):
        chosen = [GPUArch(arch)] if arch not in ("", "cpu") else []
        target = {"": None, "cpu": "cpu"}.get(arch, "nvidia")
        made = compile(function, *args, options=[*common, *chosen], target=target, **kwargs)
        compiled.append(getattr(made, "compiled", made))
    with _explained(os.path.dirname(path)):
        os.makedirs(os.path.dirname(stem) or ".", exist_ok=True)
    tvm_ffi = name if "tvm_ffi" in doors else ""
    written = [stem + kind]
    if "c" in doors:
        data, text = object_and_header(compiled, name, ptx, tvm_ffi)
        written.append(f"{stem}.h")
        write_whole(written[1], text.encode())
    else:
        data = objects_of(compiled, tvm_ffi=tvm_ffi, ptx=ptx)
    write_whole(f"{stem}.o", data)
    if kind == ".so":
        link(f"{stem}.o", f"{stem}.so")
        os.unlink(f"{stem}.o")
    return written


def link(object_path: str, path: str) -> None:
    """Make a shared library of an object, with the linker that there is."""
    found = [shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang", "ld.lld", "ld")]
    linker = next(filter(None, found), None)
    if linker is None:
        raise DSLRuntimeError(
            f"{path} needs a linker, and there is none (cc, ld)", hint="export an object (.o) and link it elsewhere"
        )
    words = [linker, "-shared", "-o", path, object_path]
    if not os.path.basename(linker).startswith("ld"):
        words += ["-Wl,--as-needed", "-lm"]  # kernels of the CPU target may call mathematical functions
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise DSLRuntimeError(f"{linker} cannot link {path}: {done.stderr.strip()}")


def portable_of(compiled: CompiledFunction, ptx: bool = True) -> Portable:
    """Its code; refuses what runs in this process only."""
    found = compiled.executable.portable(ptx)
    if found is None:
        raise error(
            DSLUserCodeTypeError,
            f"{compiled.function_name} is instrumented code, which cannot be exported",
            hint="compile it without the sanitizer",
        )
    return found


def object_and_header(compiled: Sequence[CompiledFunction], prefix: str, ptx: bool = True, tvm_ffi: str = "") -> Any:
    """The object of a function, compiled for one or more architectures, and the header of its name for C."""
    signature = signature_of(compiled[0])
    if signature.results[0] != plan.NO_RESULT:
        raise error(
            DSLUserCodeTypeError,
            f"{compiled[0].function_name} returns a number, and functions of C return whether they failed",
            hint="write it to a tensor, or export the function for TVM-FFI",
        )
    for each in signature.parameters:
        if each.is_in_c:
            declaration(prefix, each)  # refuses what has no form in C
    data = objects_of(compiled, prefix, tvm_ffi, ptx)
    return data, header(prefix, signature, version(), [portable_of(each).architecture for each in compiled])


def objects_of(compiled: Sequence[CompiledFunction], prefix: str = "", tvm_ffi: str = "", ptx: bool = True) -> bytes:
    """The object of a function, compiled for one or more architectures."""
    signature = signature_of(compiled[0])
    portables = [portable_of(each, ptx) for each in compiled]
    processor = processor_of(compiled[0].host_target)
    metadata = {
        "abi": ABI, "kiln": version(), "function": compiled[0].function_name, "target": compiled[0].target,
        "host": processor[0], "architectures": [each.architecture for each in portables],
        "signature": signature.text, "slots": signature.slots_bytes, "result": list(signature.results),
        "streams": len(signature.ambient), "prints": any(each.prints for each in portables), "doors": ["c"] * bool(prefix) + ["tvm_ffi"] * bool(tvm_ffi),
        "arguments": [{"name": each.name, **each.about} for each in signature.parameters],
    }  # fmt: skip
    return build(portables, signature, processor, metadata, prefix, tvm_ffi)


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
