"""Compare Kiln with recorded answers of CuTe DSL for sm_100a: `python tools/oracle.py FILE [--show N] [--area NAME]`.

Each line of the file is a question and an answer, `name of the call and its arguments | what it printed`. The program
asks Kiln the same, and prints how many answers agree in each area, and the first that differ. Questions that it does
not know count as differences, with the answer `unknown question`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from blackwell_questions import answers, area  # noqa: E402  # pyright: ignore[reportMissingImports]

REFUSALS = ("ERR ValueError", "ERR DSL")


def main() -> int:
    """Print counts for each area and the first differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--show", type=int, default=3, help="differences to print for each area")
    parser.add_argument("--area", default="", help="only areas whose name begins so")
    options = parser.parse_args()
    lines = [line.split(" | ", 1) for line in options.file.read_text().splitlines() if " | " in line]
    known = [(question, answer) for question, answer in lines if area(question).startswith(options.area)]
    total, same = Counter[str](), Counter[str]()
    shown = Counter[str]()
    for (question, there), here in zip(known, answers([question for question, _ in known]), strict=True):
        name = area(question)
        total[name] += 1
        if here == there or (there.startswith("ERR") and here.startswith(REFUSALS)):
            same[name] += 1
        elif shown[name] < options.show:
            shown[name] += 1
            print(f"{question}\n    there {there}\n    here  {here}")
    for name in sorted(total):
        print(f"{name:32} {same[name]:5} of {total[name]:5}")
    print(f"{'all':32} {same.total():5} of {total.total():5}")
    return 0 if same == total else 1


if __name__ == "__main__":
    raise SystemExit(main())
