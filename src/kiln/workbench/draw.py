"""`kiln draw`: draws layouts, tiled copies and MMAs, tensor maps, and operands in shared memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.layout.layout_text import parse_layout, parse_tuple
from kiln.cute.layout.leaf import LayoutError
from kiln.cute.pictures.draw import atom_latex, atom_svg, layout_latex, layout_svg, tv_latex, tv_svg
from kiln.cute.pictures.operand import operand_svg
from kiln.cute.pictures.tensor_map import tile_layout, tma_svg
from kiln.cute.pictures.tensor_memory import mma_svg, tcgen05_op

from .core.command_line import EXIT
from .core.options import Parser, flag, option


def main(argv: Sequence[str]) -> int:
    """Draw the layout on the command line; bad use if the text is no layout, or cannot be drawn or written."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.tma is None and (args.smem is not None or args.swizzle is not None or args.multicast != 1):
        parser.error("--smem, --swizzle and --multicast belong to --tma TILE")
    try:
        picture = _picture(args)
    except (LayoutError, DSLBaseError) as e:
        if isinstance(e, DSLBaseError):
            # the program is the command line
            e.span = None
            e.calls = ()
        print(f"kiln draw: {e}", file=sys.stderr)
        return EXIT.BAD_USE
    if args.output is None:
        print(picture, end="")
        return EXIT.GOOD
    try:
        Path(args.output).write_text(picture, encoding="utf-8")
    except OSError as reason:
        print(f"kiln draw: {args.output} cannot be written: {reason.strerror}", file=sys.stderr)
        return EXIT.BAD_USE
    print(f"wrote {args.output}")
    return EXIT.GOOD


def _picture(args: argparse.Namespace) -> str:
    """Return the picture of a command line, as SVG or LaTeX."""
    latex = args.output is not None and args.output.endswith(".tex")
    read = _evaluated if args.expression else parse_layout
    layout = read(args.layout)
    if args.tma is not None or args.operand is not None:
        if latex:
            raise LayoutError("pictures of shared memory are SVG: -o NAME.svg")
        dtype = _evaluated(args.dtype)
        if args.operand is not None:
            return operand_svg(layout, dtype, args.operand, rows=args.rows, title=args.title)
        tile = parse_tuple(str(args.tma))
        smem = tile_layout(layout, dtype, tile, args.swizzle) if args.smem is None else read(args.smem)
        return tma_svg(layout, dtype, smem, tile, num_multicast=args.multicast, title=args.title)
    if tcgen05_op(layout) is not None:
        if latex:
            raise LayoutError("pictures of tensor memory are SVG: -o NAME.svg")
        return mma_svg(layout, title=args.title)
    if hasattr(layout, "tiler_mn") or hasattr(layout, "tv_layout_A"):
        return atom_latex(layout) if latex else atom_svg(layout, title=args.title)
    if args.tv is not None:
        return (tv_latex if latex else tv_svg)(layout, parse_tuple(args.tv), title=args.title)
    return (layout_latex if latex else layout_svg)(layout, title=args.title)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln draw",
        description="Draw a layout (mode 0 down, mode 1 across, the offset in every cell), the TMA copies of a "
        "tensor's tiles (--tma), or an operand of WGMMA in shared memory (--operand).",
        epilog="examples: kiln draw '((2,4),8):((1,16),2)' -o a.svg; kiln draw 'S<3,0,3> o 0 o (8,8):(8,1)' -o a.svg; "
        "kiln draw '((4,8),2):((16,1),8)' --tv '(8,8)' -o tv.svg; kiln draw -e "
        "'make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)), (2, 2, 1))' -o mma.svg; "
        "kiln draw '(4096,1024):(1024,1)' --tma '(128,64)' -o map.svg; "
        "kiln draw 'S<3,4,3> o 0 o (128,64):(64,1)' --operand K -o a.svg",
    )
    parser.add_argument("layout", help="the layout as CuTe prints it; a shape alone stands for its compact layout")
    expression = (
        "the layout is a Python expression with the names of kiln, kiln.cute and kiln.cute.nvgpu; "
        "it may also make a tiled copy or a tiled MMA; of an MMA of sm_100 its tensor memory is drawn"
    )
    swizzle = "with --tma, in place of --smem: the swizzle of the map (default: the widest that fits a row of the tile)"
    operand = (
        "the layout is that of an operand of WGMMA in shared memory, contiguous along this mode: "
        "draw its core matrices and its descriptor"
    )
    flag(parser, "-e --expression", expression)
    option(parser, "-o --output", "file to write; .tex writes LaTeX, anything else SVG (default: print SVG)")
    kinds = parser.add_mutually_exclusive_group()
    option(kinds, "--tv TILE", "draw (thread, value) owners on a tile of this shape")
    option(kinds, "--tma TILE", "the layout is that of a tensor: draw how TMA copies tiles of this shape")
    option(kinds, "--operand", operand, choices=("K", "MN"))
    places = parser.add_mutually_exclusive_group()
    option(places, "--smem LAYOUT", "with --tma: the layout of a tile in shared memory")
    option(places, "--swizzle", swizzle, choices=("none", "32b", "64b", "128b"))
    option(parser, "--multicast N", "with --tma: how many CTAs share a tile (1)", type=int, default=1)
    option(parser, "--rows N", "with --operand: rows of one MMA, 64 of A or N of B (64)", type=int, default=64)
    option(parser, "--dtype", "with --tma and --operand: the element type (Float16)", default="Float16")
    option(parser, "--title", "text above the picture (default: the layout)")
    return parser


class _Names(dict[str, Any]):
    """The names that an expression may use."""

    def __missing__(self, name: str) -> Any:
        for place in (kiln, cute, cute.nvgpu):
            if hasattr(place, name):
                return getattr(place, name)
        raise NameError(f"name {name!r} is not defined in kiln, kiln.cute or kiln.cute.nvgpu")


def _evaluated(text: str) -> Any:
    try:
        return eval(text, _Names())
    except (NameError, AttributeError, SyntaxError, TypeError) as e:
        raise LayoutError(f"the expression {text!r}: {e}") from None
