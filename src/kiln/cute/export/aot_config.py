"""`python -m cutlass.cute.export.aot_config --libdir`: flags to link programs that load exported code."""

from __future__ import annotations

import argparse
import sys

from ...base_dsl import conventions, packages
from ...base_dsl.diagnostics import DSLBaseError


def main(arguments: list[str] | None = None) -> int:
    """Print what is asked for, one line each."""
    parser = argparse.ArgumentParser(prog="aot_config", description=__doc__)
    parser.add_argument("--libdir", action="store_true", help="the folder of the libraries")
    parser.add_argument("--ldflags", action="store_true", help="-L and that folder")
    parser.add_argument("--libs", action="store_true", help="-l and the libraries")
    parser.add_argument("--includedir", action="store_true", help="the folder of CuteDSLRuntime.h")
    parser.add_argument("--cmakedir", action="store_true", help="the folder of KilnConfig.cmake, for CMAKE_PREFIX_PATH")
    parser.add_argument("--with-tvm-ffi", action="store_true", help="also what TVM-FFI needs")
    parser.add_argument("--target", default="", help="another machine, as --host-target takes it, or a triple")
    options = parser.parse_args(arguments)
    answers_asked = [name for name in ("libdir", "ldflags", "libs", "includedir", "cmakedir") if getattr(options, name)]
    if not answers_asked:
        parser.error("nothing is asked for: give --libdir, --ldflags, --libs, --includedir or --cmakedir")
    target = options.target
    if target and not target.startswith(("linux-", "llvm ")):
        target = f"llvm -mtriple={target}"
    try:
        files = conventions.exporter().runtime_files
        others = [_tvm_ffi_folder()] if options.with_tvm_ffi else []
        libraries = [files.LIBRARY, "dl", *(["tvm_ffi"] if options.with_tvm_ffi else [])]
        answers = {
            "libdir": lambda: ":".join([files.library_folder(target), *others]),
            "ldflags": lambda: " ".join(f"-L{folder}" for folder in [files.library_folder(target), *others]),
            "libs": lambda: " ".join(f"-l{library}" for library in libraries),
            "includedir": files.include_folder,
            "cmakedir": files.cmake_folder,
        }
        print("\n".join([answers[name]() for name in answers_asked]))  # all of it, or an error
    except (DSLBaseError, ImportError) as reason:
        print(f"aot_config: {reason}", file=sys.stderr)
        return 1
    return 0


def _tvm_ffi_folder() -> str:
    if not packages.is_here("tvm_ffi"):
        raise ImportError("TVM-FFI is not installed: pip install kiln-dsl[tvm-ffi]")
    import os

    tvm_ffi = packages.load("tvm_ffi")

    return os.path.dirname(tvm_ffi.libinfo.find_libtvm_ffi())


if __name__ == "__main__":
    sys.exit(main())
