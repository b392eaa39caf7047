"""C headers of exported functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import type_error
from .signature import Parameter, c_number, numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .signature import Signature

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(name: str, what: str) -> str:
    """Return a name; refuses one that C does not accept."""
    if not IDENTIFIER.fullmatch(name):
        raise type_error(f"the {what} {name!r} is no name of C", "letters, digits and underscores, and no digit first")
    return name


def tensor_type(prefix: str, parameter: Parameter) -> str:
    """Return the C type of a tensor parameter, which contains its name."""
    return f"{prefix}_Tensor_{parameter.name if parameter.name.isascii() else parameter.c_name}_t"


def declaration(prefix: str, parameter: Parameter) -> str:
    """Return the C declaration of a parameter; refuses one without a form in C."""
    name = parameter.c_name
    if parameter.kind == "tensor":
        return f"{tensor_type(prefix, parameter)} *{name}"
    if parameter.kind in ("stream", "pointer"):
        return f"void *{name}"
    if parameter.kind == "number":
        return f"{c_number(parameter.about['type'])} {name}"
    types = numbers_of(parameter.about) if parameter.kind == "tuple" else None
    if types is None or len(set(types)) > 1:
        raise type_error(
            f"argument {parameter.name!r} has no form in C: it holds other things than numbers of one type",
            "pass tensors one by one, or export it for TVM-FFI",
        )
    return f"const {c_number(types[0]) if types else 'int32_t'} *{name}"


def _fields(leaves: Sequence[object], name: str) -> list[str]:
    """Return C fields for the dynamic extents or strides."""
    bits = [leaf["bits"] for leaf in leaves if isinstance(leaf, dict)]
    if len(set(bits)) > 1:
        return [f"int{width}_t {name[:-1]}_{number};" for number, width in enumerate(bits)]
    return [f"int{bits[0]}_t {name}[{len(bits)}];"] if bits else []


def _layout(about: dict[str, Any]) -> str:
    def text(leaf: object) -> str:
        if not isinstance(leaf, dict):
            return str(leaf)
        return "?" if leaf["divisibility"] == 1 else f"?{{div={leaf['divisibility']}}}"

    shape, stride = (", ".join(map(text, about[part])) for part in ("shape", "stride"))
    return f"({shape}):({stride}) of {about['type']}, address a multiple of {about['alignment']}"


def _in_comment(text: str) -> str:
    """Return a text that neither ends a C comment nor continues a line."""
    return " ".join(text.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").split())


def header(prefix: str, signature: Signature, version: str, architectures: Sequence[str]) -> str:
    """Return the text of the header."""
    passed = [each for each in signature.parameters if each.is_in_c]
    guard = f"KILN_{prefix.upper()}_H"
    lines = [
        f"/* {_in_comment(signature.text)}, exported by Kiln {version} for {', '.join(architectures)}.",
        " *",
        " * Functions return 0, a CUresult, or a negative number: -1 - n if argument n does not match, others if",
        f" * arguments contradict each other. {prefix}_Kernel_Module_Error then returns the message of the error,",
        " * in the thread that called. A null module is loaded at the first call.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        *(f"#include <{name}.h>" for name in ("stddef", "stdint", "stdio", "stdlib")),
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    for each in passed:
        if each.kind == "tensor":
            about = each.about
            fields = _fields(about["shape"], "dynamic_shapes") + _fields(about["stride"], "dynamic_strides")
            lines += [
                f"/* {_layout(about)} */",
                "typedef struct {",
                "  void *data;",
                *(f"  {field}" for field in fields),
            ]
            lines += [f"}} {tensor_type(prefix, each)};", ""]
    module = f"{prefix}_Kernel_Module_t"
    parameters = ", ".join([f"{module} *module", *(declaration(prefix, each) for each in passed)])
    lines += [
        "typedef struct {",
        "  void *function;",
        f"}} {module};",
        "",
        f"int32_t {prefix}_Kernel_Module_Load({module} *module);",
        f"int32_t {prefix}_Kernel_Module_Unload({module} *module);",
        f"const char *{prefix}_Kernel_Module_Error(const {module} *module);",
        f"int32_t cute_dsl_{prefix}_wrapper({parameters});",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)
