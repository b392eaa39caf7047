"""Products and sums that become one instruction."""

from __future__ import annotations

from ....mlir import context, find, ir


def allow_contraction(module: ir.Module) -> None:
    """Let a product and the sum it goes into be one instruction that rounds once, as CUDA's compilers do.

    Only what the program wrote: what expansions add later counts on its own roundings.
    """
    contract, none = (ir.Attribute.parse(f"#arith.fastmath<{flag}>", context()) for flag in ("contract", "none"))
    for op in find(module.operation, ("arith.mulf", "arith.addf", "arith.subf")):
        if op.attributes["fastmath"] == none:
            op.attributes["fastmath"] = contract
