"""What tests of the sanitizer share."""

from __future__ import annotations

from typing import Any

import kiln


def found(main: Any, *arguments: Any) -> list[Any]:
    """What the sanitizer finds in a program."""
    with kiln.sanitize(raises=False) as report:
        main(*arguments)
    return report.findings
