"""`docs/dialect.md`, made from the docstrings of the dialects: `python -m kiln.dialects.docs` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from . import cute, nvgpu
from .cute import grid, memory, reports
from .declaration import CONVERGED, ORDERS, UNSTATED, VARIES, Access, OpView
from .definition import choices
from .nvgpu import definitions

_HEAD = """# The dialects

For contributors. `python -m kiln.dialects.docs` makes this page from the docstrings in `src/kiln/dialects`; change them
there.

Tracing emits operations of three kinds. `arith`, `math`, `scf`, `cf`, `vector` and `func` are for scalars, vectors and
control flow. `cute` is for tiles, memory and the grid, `cuda` for launches. `cute_nvgpu` is for what NVIDIA
hardware does beyond that.

- Operations print in MLIR's generic form. This page writes `name(operands) {attributes} -> results`, each attribute with
  its possible values, and with `?` if it may be left out.
- Operands of mixed types travel as one `tuple` made by `builtin.unrealized_conversion_cast`.
- A kernel is a `func.func` with the unit attribute `cute.kernel`.
- "Effects" are what passes, targets and the sanitizer ask of an operation (keywords of its class, `declaration.py`).
- Rules beyond types (`check` beside each operation) are verified once for a module.
- `src/kiln/dialects/nvgpu/definitions.py` says in plain Python what operations of the hardware compute. Tests compare the
  CPU target with it.
"""


def _signature(op: Any) -> str:
    attributes = [_attribute(name, constraint) for name, constraint in op.ATTRIBUTES.items()]
    attributes += [_attribute(f"{name}?", constraint) for name, constraint in op.OPTIONAL.items()]
    text = f"{op.OPERATION_NAME}({', '.join(op.OPERANDS)})"
    if attributes:
        text += f" {{{', '.join(attributes)}}}"
    return text + (" -> " + ", ".join(op.RESULTS) if op.RESULTS else "")


def _attribute(name: str, constraint: Any) -> str:
    options = choices(constraint)
    return f"{name}: {' | '.join(map(str, options))}" if options else name


def definition_of(name: str) -> str:
    """Return where the plain definition of an operation of the hardware is, or an empty text."""
    if "mbarrier" in name:
        return "Mbarrier"
    return name if callable(getattr(definitions, name, None)) else ""


def _effects(op: type[OpView]) -> str:
    """Return what the declaration of an operation says that it does, as a line."""
    parts = [
        f"{verb} {_accessed(access)}" for verb, all_ in (("reads", op.READS), ("writes", op.WRITES)) for access in all_
    ]
    for verb, engines in (("commits", op.COMMITS), ("awaits", op.AWAITS)):
        parts += [f"{verb} {' and '.join(engine.name for engine in engines)}"] if engines else []
    parts += [f"engine {op.ENGINE.name}"] if op.ENGINE else []
    parts += [f"mbarrier `{op.MBARRIER}`"] if op.MBARRIER else []
    parts += [f"orders {ORDERS[op.ORDERS]}"] if op.ORDERS else []
    parts += [f"executed together by {CONVERGED[op.CONVERGED]}"] if op.CONVERGED else []
    parts += [VARIES[op.VARIES]] if op.VARIES not in (UNSTATED, "") else []
    return f"Effects: {'; '.join(parts)}.\n" if parts else ""


def _accessed(access: Access) -> str:
    size = f"{access.bytes}" if isinstance(access.bytes, int) else f"`{access.bytes}`"
    words = [f"{size} bytes"] * (access.bytes is not None) + [f"`{access.value}`"] * bool(access.value)
    return f"`{access.operand}`" + (f" ({' of '.join(words)})" if words else "")


def _entry(title: str, thing: Any) -> str:
    return f"### `{title}`\n\n{inspect.cleandoc(thing.__doc__ or '')}\n"


def _unit(module: Any, operations: Any) -> list[str]:
    """Return the operations that a module defines, under what it says of itself."""
    own = [op for op in operations if op.__module__ == module.__name__]
    name = module.__name__.removeprefix("kiln.dialects.").replace(".", "/")
    parts = [f"## `{name}.py`\n\n{inspect.cleandoc(module.__doc__ or '')}\n"]
    for op in own:
        parts.append(_entry(_signature(op), op))
        if effects := _effects(op):
            parts.append(effects)
        if plain := definition_of(op.OPERATION_NAME.removeprefix("cute_nvgpu.")):
            parts.append(f"In plain Python: `definitions.{plain}`.\n")
    return parts


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD, "## Types\n", *(_entry(f"!cute.{type_.__name__.lower()}", type_) for type_ in cute.TYPES)]
    for module in (grid, reports, memory):
        parts += _unit(module, cute.OPERATIONS)
    for module in nvgpu.UNITS:
        parts += _unit(module, nvgpu.OPERATIONS)
    return "\n".join(parts)


if __name__ == "__main__":
    Path("docs/dialect.md").write_text(page())
