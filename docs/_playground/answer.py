"""What the playground computes, in the browser and in the tests: one operation on layouts that are typed as text."""

from __future__ import annotations

import json
from typing import Any

from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.layout.composed_layout import ComposedLayout
from kiln.cute.layout.int_tuple import pretty_str
from kiln.cute.layout.layout_text import parse_layout, parse_tuple
from kiln.cute.layout.leaf import LayoutError
from kiln.cute.pictures.draw import layout_svg

OPERATIONS = {
    "draw": "",
    "coalesce": "",
    "composition": "Layout or tiler",
    "complement": "Size to fill",
    "logical_divide": "Tiler",
    "zipped_divide": "Tiler",
    "logical_product": "Tiler",
    "swizzle": "Swizzle S<b,m,s>",
}
"""The operations, and what the second field holds; nothing if there is none."""
PRESETS = (
    ("Row-major", "draw", "(4,8):(8,1)", ""),
    ("Nested modes", "draw", "(4,(2,2)):(2,(1,8))", ""),
    ("Tiles of a matrix", "zipped_divide", "(8,8):(8,1)", "(4,4)"),
    ("Every other column", "composition", "(4,8):(8,1)", "(4,4):(1,8)"),
    ("Swizzled rows", "swizzle", "(8,8):(8,1)", "S<3,0,3>"),
)
"""Examples: a title, the operation, and the two fields."""
MOST_CELLS = 4096
"""The most elements of a layout that is drawn: more are too small to read, and make the browser slow."""


def answer(operation: str, layout: str, operand: str) -> str:
    """Return the result of an operation as JSON: its text, the same as Python, and a picture; or Kiln's error."""
    try:
        result, python = _result(operation, parse_layout(layout.strip()), operand.strip())
        about = f"size {cute.size(result)}, cosize {cute.cosize(result)}"
        said = {"text": f"{result}", "python": "" if "@" in python else python, "about": about}
        if cute.size(result) <= MOST_CELLS:
            return json.dumps({**said, "svg": layout_svg(result)})
        return json.dumps({**said, "error": f"A layout of more than {MOST_CELLS} elements is not drawn."})
    except DSLBaseError as error:
        error.span, error.calls = None, ()  # the program is this file
        return json.dumps({"error": str(error)})


def _result(operation: str, layout: Any, operand: str) -> tuple[Any, str]:
    made = _python(layout)
    if operation in ("draw", "coalesce"):
        return (layout, made) if operation == "draw" else (cute.coalesce(layout), f"cute.coalesce({made})")
    if not operand:
        raise LayoutError(f"{operation} needs a second operand: {OPERATIONS[operation].lower()}")
    if operation == "swizzle":
        swizzled = parse_layout(f"{operand} o 0 o {layout}")
        return swizzled, _python(swizzled)
    other = parse_layout(operand) if ":" in operand else parse_tuple(operand)
    second = _python(other) if ":" in operand else f"{other}"
    return getattr(cute, operation)(layout, other), f"cute.{operation}({made}, {second})"


def _python(layout: Any) -> str:
    """Return the Python expression of a layout."""
    if isinstance(layout, ComposedLayout):
        swizzle = layout.inner
        inner = f"cute.make_swizzle({swizzle.num_bits}, {swizzle.num_base}, {swizzle.num_shift})"
        return f"cute.make_composed_layout({inner}, {pretty_str(layout.offset)}, {_python(layout.outer)})"
    return f"cute.make_layout({layout.shape}, stride={layout.stride})"
