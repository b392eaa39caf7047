"""The pictures of the gallery, one function each: `python docs/figures/gallery.py` writes docs/pictures/gallery."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from drawing import Picture, save
from speeds import GALLERY

from kiln import cute

PICTURES = Path(__file__).parents[1] / "pictures" / "gallery"
WIDE, HIGH = 360, 190


def gemm(p: Picture) -> None:
    """Draw the tile of D that a CTA computes, and the rows and columns that it reads."""
    for x, y, columns, rows, name in ((10, 88, 3, 4, "A"), (108, 8, 7, 3, "B"), (108, 88, 7, 4, "D")):
        for i, j in itertools.product(range(rows), range(columns)):
            mine = (name == "A" and i == 1) or (name == "B" and j == 4) or (name == "D" and (i, j) == (1, 4))
            color = {"A": "blue", "B": "green", "D": "orange"}[name] if mine else "soft"
            p.box(x + j * 24, y + i * 24, 22, 22, color, radius=2)
        p.text(x + columns * 24 + 11, y + rows * 12, name, bold=True)
    p.text(326, 122, "one CTA,\none tile", size=11, color="muted")


def grouped_gemm(p: Picture) -> None:
    """Draw the tiles of three groups with 1, 3 and 2 tiles of rows, numbered as CTAs take them."""
    p.text(10, 14, "rows of three experts, one launch", anchor="start", size=12, color="muted")
    y = 28.0
    tile = 0
    for group, (rows, color) in enumerate(((1, "blue"), (3, "green"), (2, "orange"))):
        p.text(12, y + rows * 12, f"expert {group}", anchor="start", size=12)
        for i, j in itertools.product(range(rows), range(5)):
            p.box(82 + j * 46, y + i * 24, 44, 22, color, f"tile {tile}", size=10)
            tile += 1
        y += rows * 24 + 6


def attention(p: Picture) -> None:
    """Draw a tile of Q that stays, tiles of K and V that stream past, and what is kept for each row."""
    p.box(10, 66, 70, 60, "blue", "Q tile\nstays", size=12)
    for i in range(4):
        x = 112 + i * 60
        p.box(x, 10, 54, 34, "green" if i == 1 else "soft", f"K, V {i}", size=11)
    p.arrow(112, 54, 346, 54, color="muted")
    p.arrow(82, 96, 108, 96)
    p.box(112, 72, 234, 46, "orange", "for each row:\nmaximum, sum, output so far", size=12)
    p.text(229, 142, "a larger maximum rescales sum and output:", size=11, color="muted")
    p.text(229, 162, "scores never go to memory", size=11, color="muted")


def attention_backward(p: Picture) -> None:
    """Draw a tile of K and V that stays, tiles of Q and dO that stream past, and the three gradients."""
    p.box(10, 66, 76, 60, "green", "K, V tile\nstays", size=12)
    for i in range(4):
        p.box(112 + i * 60, 10, 54, 34, "blue" if i == 1 else "soft", f"Q, dO {i}", size=11)
    p.arrow(112, 54, 346, 54, color="muted")
    p.arrow(88, 96, 108, 96)
    p.box(112, 72, 112, 46, "orange", "dK, dV\nin registers", size=12)
    p.box(234, 72, 112, 46, "violet", "dQ\nadded in memory", size=12)
    p.text(229, 146, "scores are computed again, not stored", size=11, color="muted")


def mla(p: Picture) -> None:
    """Draw many heads that read one latent for each token."""
    for head in range(8):
        p.box(10, 8 + head * 21, 66, 18, "blue", f"head {head}", size=10)
        p.line(78, 17 + head * 21, 118, 90, color="muted", wide=1)
    for token in range(6):
        p.box(120 + token * 38, 66, 34, 48, "green", f"latent\n{token}", size=9)
    p.text(234, 44, "one latent for each token, 576 numbers,", size=11, color="muted")
    p.text(234, 132, "loaded once, read by all heads,", size=11, color="muted")
    p.text(234, 150, "as keys and as values", size=11, color="muted")


def softmax(p: Picture) -> None:
    """Draw a row that is read once, kept in registers, and written once."""
    p.box(10, 10, 340, 26, "red", "a row of x in global memory", size=12)
    p.arrow(180, 38, 180, 58)
    p.text(190, 48, "one read", anchor="start", size=11, color="muted")
    for lane in range(8):
        p.box(10 + lane * 43, 60, 39, 24, "green", f"lane {lane}", size=10)
    p.box(10, 92, 340, 24, "blue", "shuffles: maximum, then sum of exponentials", size=11)
    p.arrow(180, 118, 180, 138)
    p.text(190, 128, "one write", anchor="start", size=11, color="muted")
    p.box(10, 140, 340, 26, "red", "a row of y", size=12)


def rms_norm(p: Picture) -> None:
    """Draw the same for RMSNorm: a sum of squares, a factor, a weight."""
    p.box(10, 10, 340, 26, "red", "a row of x in global memory", size=12)
    p.arrow(180, 38, 180, 58)
    for lane in range(8):
        p.box(10 + lane * 43, 60, 39, 24, "green", f"lane {lane}", size=10)
    p.box(10, 92, 150, 24, "blue", "mean of squares", size=11)
    p.arrow(162, 104, 178, 104)
    p.box(180, 92, 170, 24, "orange", "x * rsqrt(mean + eps) * w", size=11)
    p.arrow(180, 118, 180, 138)
    p.box(10, 140, 340, 26, "red", "a row of y", size=12)


def convolution(p: Picture) -> None:
    """Draw two overlapping patches of an image, and the rows of the A matrix that they are."""
    cell = 20
    for i, j in itertools.product(range(6), range(6)):
        first, second = i < 3 and j < 3, i < 3 and 1 <= j < 4
        color = "violet" if first and second else "blue" if first else "orange" if second else "soft"
        p.box(12 + j * cell, 24 + i * cell, cell - 2, cell - 2, color, radius=1)
    p.text(72, 12, "image", bold=True, size=12)
    p.text(258, 12, "A: a row for each pixel", bold=True, size=12)
    for row in range(6):
        for k in range(9):
            shared = (row == 0 and k % 3 > 0) or (row == 1 and k % 3 < 2)
            color = "soft" if row > 1 else "violet" if shared else "blue" if row == 0 else "orange"
            p.box(168 + k * cell, 24 + row * cell, cell - 2, cell - 2, color, radius=1)
    p.arrow(136, 84, 162, 84)
    p.text(180, 164, "no copy: rows of A overlap in memory", size=12, color="muted")


def transpose(p: Picture) -> None:
    """Draw in which group of four banks each vector of a tile lies, as the example's layout says."""
    swizzle = cute.make_composed_layout(cute.make_swizzle(3, 2, 5), 0, cute.make_layout((32, 32), stride=(32, 1)))
    for side, layout in enumerate((cute.make_layout((32, 32), stride=(32, 1)), swizzle)):
        x = 12 + side * 180
        p.text(x + 78, 12, ("row-major", "S<3,2,5>")[side], bold=True, size=12)
        for i, j in itertools.product(range(8), range(8)):
            bank = layout((4 * i, 4 * j)) // 4 % 8
            color = ("red", "green")[side] if j == 2 else "soft"
            p.box(x + j * 19.5, 22 + i * 18, 18, 16.5, color, str(bank), size=10, radius=1)
        p.text(x + 78, 178, ("a column: one group of banks", "a column: all eight")[side], size=11, color="muted")


def histogram(p: Picture) -> None:
    """Draw the private counts of eight lanes for five bins, and their sums; the numbers are computed."""
    data = [(lane * 7 + k * 3 + lane * lane * k) % 5 for lane in range(8) for k in range(6)]
    p.text(46, 12, "bin", size=11, color="muted")
    for lane in range(8):
        p.text(85 + lane * 27, 12, f"L{lane}", size=11, color="muted")
    p.text(326, 12, "counts", size=11, color="muted")
    for b in range(5):
        y = 24 + b * 27
        p.text(46, y + 12, str(b), size=12)
        for lane in range(8):
            count = data[lane * 6 : lane * 6 + 6].count(b)
            p.box(73 + lane * 27, y, 25, 24, "blue" if count else "soft", str(count), size=12)
        p.arrow(290, y + 12, 302, y + 12, color="muted")
        p.box(305, y, 42, 24, "green", str(data.count(b)), size=12)
    p.text(180, 174, "lane L counts in column L, always in bank L", size=12, color="muted")


def scan(p: Picture) -> None:
    """Draw four tiles with their sums and prefixes, and the tile that looks back; the numbers are computed."""
    tiles = [[3, 1, 4], [1, 5, 9], [2, 6, 5], [3, 5, 8]]
    sums = [sum(tile) for tile in tiles]
    prefixes = list(itertools.accumulate(sums))
    for i, tile in enumerate(tiles):
        x = 10 + i * 87
        p.text(x + 39, 12, f"tile {i}", bold=True, size=12)
        for k, value in enumerate(tile):
            p.box(x + k * 26, 24, 24, 24, "blue", str(value), size=12)
        known = i < 2
        words = f"prefix {prefixes[i]}" if known else f"sum {sums[i]}"
        p.box(x, 60, 76, 24, "green" if known else "orange", words, size=11)
        if i == 3:
            before = list(itertools.accumulate(tile, initial=prefixes[2]))[1:]
            for k, value in enumerate(before):
                p.box(x + k * 26, 132, 24, 24, "violet", str(value), size=11)
    for i in (2, 1):
        p.arrow(310, 120, 48 + i * 87, 90, color="strong")
    p.text(150, 126, f"tile 3 looks back: {sums[2]} + {prefixes[1]} = {prefixes[2]}", size=12)
    p.text(150, 160, "it stops at the first prefix", size=12, color="muted")


DRAWINGS: dict[str, Callable[[Picture], None]] = {
    function.__name__: function
    for function in (
        gemm,
        grouped_gemm,
        attention,
        attention_backward,
        mla,
        softmax,
        rms_norm,
        convolution,
        transpose,
        histogram,
        scan,
    )
}


def main(folder: Path = PICTURES) -> list[Path]:
    """Write the pictures of the gallery, with the descriptions that it has for them."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for each in GALLERY:
        picture = Picture(WIDE, HIGH, each.alt)
        DRAWINGS[each.picture](picture)
        files += save(folder, each.picture, picture)
    return files


if __name__ == "__main__":
    for written in main():
        print(f"wrote {written}")
