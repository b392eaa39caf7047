"""`docs/dialect.md`, made from the docstrings of the dialect: `python -m kiln.dialects.docs` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from . import cute

_HEAD = """# The `cute` dialect

Made from the docstrings in `src/kiln/dialects/cute.py` by `python -m kiln.dialects.docs`; change them there.

The front end emits `arith`, `math`, `scf`, `cf`, `vector` and `func` for scalars, vectors and control flow, and this
dialect for what is about tiles, memory and the grid. Operations print in MLIR's generic form. Operands of mixed types
travel as one `tuple` made by `builtin.unrealized_conversion_cast`. A kernel is a `func.func` with the unit attribute
`cute.kernel`.
"""


def _signature(op: Any) -> str:
    operands, attributes, results = [], [], []
    for field in op._fields:
        kind = type(field).__name__
        if kind == "OperandDef":
            operands.append(field.name + ("..." if field.variadicity.name == "variadic" else ""))
        elif kind == "ResultDef":
            results.append(field.name)
        else:
            attributes.append(field.name)
    text = f"{op.OPERATION_NAME}({', '.join(operands)})"
    if attributes:
        text += f" {{{', '.join(attributes)}}}"
    return text + (" -> " + ", ".join(results) if results else "")


def page() -> str:
    """The text of the page."""
    parts = [_HEAD, "## Types\n"]
    for type_ in cute.TYPES:
        parts.append(f"### `!{type_.type_name}`\n\n{inspect.cleandoc(type_.__doc__ or '')}\n")
    parts.append("## Operations\n")
    for op in cute.OPERATIONS:
        parts.append(f"### `{_signature(op)}`\n\n{inspect.cleandoc(op.__doc__ or '')}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path("docs/dialect.md").write_text(page())
