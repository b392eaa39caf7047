"""Freeing of LLVM's pass managers."""

from __future__ import annotations

from ...llvm import binding as llvm


def free(passes: llvm.ModulePassManager | llvm.FunctionPassManager) -> None:
    """Free a pass manager: llvmlite 0.50 does not (58 KB each), as its class takes `_dispose` from the wrong base."""
    base = llvm.newpassmanagers.NewPassManager
    if type(passes)._dispose is not base._dispose:
        base._dispose(passes)
        passes.detach()
