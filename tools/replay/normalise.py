"""Normalise compiler output: symbols, which are made of Python names, become numbers.

A kernel's symbol is made of the names of its class and function, so that a rename would change the IR and the PTX everywhere.
Symbols become `s0`, `s1`, ... in the order in which they appear.
"""

from __future__ import annotations

import re

_LOCATION = re.compile(r" ?loc\((?:[^()]|\([^()]*\))*\)|^#loc.*$", re.MULTILINE)
_IR_SYMBOL = re.compile(r"@([A-Za-z_$][\w$.-]*)")
_IR_DEFINED = re.compile(r"\bfunc(?:\.func)?\s+(?:private |public |nested )?@([A-Za-z_$][\w$.-]*)")
_PTX_DEFINED = re.compile(
    r"^\s*(?:\.(?:visible|extern|weak|common)\s+)*"
    r"(?:\.entry|\.func(?:\s*\([^)]*\))?|\.(?:global|const|shared)(?:\s+\.(?:align\s+\d+|attribute\([^)]*\)|\w+))*)\s+"
    r"([A-Za-z_$][\w$]*)",
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_DEBUG_LINE = (".loc", ".file", "//", "$L__tmp", "$L__func", "$L__info")


def ir(text: str) -> str:
    """Return the text of a module without locations, its functions numbered."""
    text = _LOCATION.sub("", text)
    numbers = {name: f"s{number}" for number, name in enumerate(dict.fromkeys(_IR_DEFINED.findall(text)))}
    return _IR_SYMBOL.sub(lambda found: f"@{numbers.get(found[1], found[1])}", text)


def ptx(text: str) -> str:
    """Return PTX without line information and comments, its functions and variables numbered; ptxas takes it."""
    text = text.split(".section\t.debug", maxsplit=1)[0]
    lines = (line.split("//")[0].rstrip() for line in text.splitlines())
    text = "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith(_DEBUG_LINE)) + "\n"
    numbers = {name: f"s{number}" for number, name in enumerate(dict.fromkeys(_PTX_DEFINED.findall(text)))}

    def renamed(found: re.Match[str]) -> str:
        word = found[0]
        if word in numbers:
            return numbers[word]
        symbol, parameter, number = word.rpartition("_param_")
        return f"{numbers[symbol]}_param_{number}" if parameter and symbol in numbers else word

    return _WORD.sub(renamed, text)
