"""Measure configs on a GPU, fit the cost models that choose among them, and show what their choices lose.

    python benchmarks/fit.py compile gemm [--only layers]             # kernels into the disk cache: needs the GPU
    python benchmarks/fit.py measure decode [--kinds bf16,64] [--part 0/4]  # the same; goes on where it was stopped
    python benchmarks/fit.py fit attention                            # writes src/kiln/kernels/tuned/h200.json
    python benchmarks/fit.py report backward                          # chosen and best configs, shape by shape
    python benchmarks/fit.py count gemm                               # configs of each shape that would be measured

Families: gemm (`fitting/gemm.py`); attention, decode, mla, backward (`fitting/attention.py`). Both say what is
measured, and how. Measurements are in `benchmarks/data`; `recorded.py` reads them without Kiln. `make choices` tells
what choices lose by them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fitting import attention, gemm

from kiln.kernels import tuned

FAMILIES = ("gemm", *attention.TABLES)
TABLE = Path(tuned.__file__).with_name("h200.json")


def write(model: str, found: dict[str, Any], path: Path = TABLE) -> None:
    """Put the coefficients of a model into the tuned table; those that were not fitted stay."""
    table = json.loads(path.read_text())
    table[model] |= found
    path.write_text(text_of(table))


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON with a line for each coefficient, and for each config."""

    def value(x: Any) -> str:
        if not isinstance(x, list):
            return json.dumps(x)
        return "[\n" + ",\n".join(f"      {json.dumps(row)}" for row in x) + "\n    ]"

    models = (
        f'  "{model}": {{\n' + ",\n".join(f'    "{name}": {value(x)}' for name, x in own.items()) + "\n  }"
        for model, own in table.items()
    )
    return "{\n" + ",\n".join(models) + "\n}\n"


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("action", choices=("compile", "measure", "fit", "report", "count"))
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--seconds", type=float, default=180.0, help="after which nothing further is begun")
    parser.add_argument("--journal", type=Path, help="a file of measurements in place of that of benchmarks/data")
    gemm.add_options(parser.add_argument_group("gemm"))  # type: ignore[arg-type]
    attention.add_options(parser.add_argument_group("attention, decode, mla, backward"))  # type: ignore[arg-type]
    asked = parser.parse_args()
    if asked.action == "count" and asked.family != "gemm":
        parser.error(f"{asked.action} is for gemm")
    if asked.action == "fit" and asked.family not in ("gemm", *attention.FITS):
        parser.error(f"{asked.family} has no fitted coefficients")
    if asked.family == "gemm":
        model, found = "gemm_sm90", gemm.run(asked.action, asked)
    else:
        found = attention.run(asked.action, asked.family, asked)
        model = attention.FITS.get(asked.family, ("", None))[0]
    if found is not None:
        write(model, found)


if __name__ == "__main__":
    main()
