"""What every user of LLVM's pass managers needs."""

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager


def free(passes: llvm.ModulePassManager) -> None:
    """Free a pass manager: llvmlite 0.50 does not (58 KB each), as its class takes `_dispose` from the wrong base."""
    if llvm.ModulePassManager._dispose is not NewPassManager._dispose:
        NewPassManager._dispose(passes)
        passes.detach()
