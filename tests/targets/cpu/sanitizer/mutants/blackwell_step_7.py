"""Step 7 of `examples/blackwell`, with two stages: MXFP8, whose scale factors are copied before the MMAs of each k tile."""

EXAMPLE = "blackwell/step_7_block_scaled.py"
SMALLER = {"\nSTAGES = 3": "\nSTAGES = 2"}


def run(example):
    operands = example.tensors(128, 128, 4 * 128, example.MXFP8)
    example.gemm(*operands)
    return example.check(*operands) <= 1


CHANGED = [
    ("rows of others", "cute.recast_ptr(acc_ptr + N, dtype=kind.scale)", "cute.recast_ptr(acc_ptr + N + 1, dtype=kind.scale)"),
    ("copied after the MMAs", """            cute.copy(copy_sfb, source_sfb[at], target_sfb)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            held = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[held], sfa_tmem], [frag_b[held], sfb_tmem], acc)
""", """            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            held = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[held], sfa_tmem], [frag_b[held], sfb_tmem], acc)
            cute.copy(copy_sfb, source_sfb[at], target_sfb)
"""),
    ("not copied", "            cute.copy(copy_sfb, source_sfb[at], target_sfb)\n", ""),
    ("in the accumulator", "acc_ptr + N + M // 32 * kind.scales // 4, dtype", "acc_ptr + 16, dtype"),
    ("over those of A", "acc_ptr + N + M // 32 * kind.scales // 4, dtype", "acc_ptr + N + 1, dtype"),
    ("released before they are copied", """            cute.copy(copy_sfb, source_sfb[at], target_sfb)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            held = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[held], sfa_tmem], [frag_b[held], sfb_tmem], acc)
            full.release()
""", """            full.release()
            cute.copy(copy_sfb, source_sfb[at], target_sfb)
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            held = (None, None, None, full.index)
            cute.gemm(mma, acc, [frag_a[held], sfa_tmem], [frag_b[held], sfb_tmem], acc)
"""),
]  # fmt: skip
