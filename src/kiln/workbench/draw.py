"""`kiln draw`: a layout, a thread-value layout on its tile, a tiled copy or a tiled MMA as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.atoms.draw import atom_latex, atom_svg, layout_latex, layout_svg, tv_latex, tv_svg
from kiln.cute.layout.layout_text import parse_layout, parse_tuple
from kiln.cute.layout.leaf import LayoutError


def main(argv: Sequence[str]) -> int:
    """Draw the layout on the command line; 1 if the text is not a layout or cannot be drawn."""
    parser = argparse.ArgumentParser(
        prog="kiln draw",
        description="Draw a layout: mode 0 down, mode 1 across, the offset in every cell.",
        epilog="examples: kiln draw '((2,4),8):((1,16),2)' -o a.svg; kiln draw 'S<3,0,3> o 0 o (8,8):(8,1)' -o a.svg; "
        "kiln draw '((4,8),2):((16,1),8)' --tv '(8,8)' -o tv.svg; kiln draw -e "
        "'make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)), (2, 2, 1))' -o mma.svg",
    )
    parser.add_argument("layout", help="the layout as CuTe prints it; a shape alone stands for its compact layout")
    parser.add_argument(
        "-e",
        "--expression",
        action="store_true",
        help="the layout is given as a Python expression with the names of kiln, kiln.cute and kiln.cute.nvgpu; "
        "it may also make a tiled copy or a tiled MMA",
    )
    parser.add_argument(
        "-o", "--output", help="file to write; .tex writes LaTeX, anything else SVG (default: print SVG)"
    )
    parser.add_argument("--tv", metavar="TILE", help="draw (thread, value) owners on a tile of this shape")
    parser.add_argument("--title", help="text above the picture (default: the layout)")
    args = parser.parse_args(argv)
    latex = args.output is not None and args.output.endswith(".tex")
    try:
        layout = _evaluated(args.layout) if args.expression else parse_layout(args.layout)
        if hasattr(layout, "tiler_mn") or hasattr(layout, "tv_layout_A"):
            picture = atom_latex(layout) if latex else atom_svg(layout, title=args.title)
        elif args.tv is not None:
            picture = (tv_latex if latex else tv_svg)(layout, parse_tuple(args.tv), title=args.title)
        else:
            picture = (layout_latex if latex else layout_svg)(layout, title=args.title)
    except (LayoutError, DSLBaseError) as e:
        print(f"kiln draw: {e}", file=sys.stderr)
        return 1
    if args.output is None:
        print(picture, end="")
    else:
        Path(args.output).write_text(picture, encoding="utf-8")
        print(f"wrote {args.output}")
    return 0


class _Names(dict[str, Any]):
    """The names an expression may use."""

    def __missing__(self, name: str) -> Any:
        import kiln
        from kiln import cute

        for place in (kiln, cute, cute.nvgpu):
            if hasattr(place, name):
                return getattr(place, name)
        raise NameError(f"name {name!r} is not defined in kiln, kiln.cute or kiln.cute.nvgpu")


def _evaluated(text: str) -> Any:
    try:
        return eval(text, _Names())
    except (NameError, AttributeError, SyntaxError, TypeError) as e:
        raise LayoutError(f"the expression {text!r}: {e}") from None
