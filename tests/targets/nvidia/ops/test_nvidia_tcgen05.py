"""tcgen05 and cluster launch control as PTX and SASS: every form is assembled by ptxas, several in a kernel."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_nvdisasm, needs_ptxas

import kiln as cutlass
import kiln.cute as cute
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLArchitectureError
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.dialects.nvgpu import launch_control, tcgen05, tcgen05_descriptors, tensor_memory
from kiln.hardware import sass
from kiln.targets.cpu.lower import HANDLERS


class Values(NamedTuple):
    """What the operations of a test take: numbers of the run, and addresses of shared memory."""

    word: Any
    wide: Any
    flag: Any
    smem: Any
    mbarrier: Any


def compiled(body: Callable[[Values], None], arch_: str = "sm_100a", cluster: int = 1) -> Any:
    """A kernel of one warp."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        shared, mbarrier = arch.alloc_smem(cute.Int32, 1024, 1024), arch.alloc_smem(cute.Int64, 1)
        word = x[0]
        values = Values(
            word.ir_value(), cute.Int64(word).ir_value(), (word > 3).ir_value(), shared.ir_value(), mbarrier.ir_value()
        )
        body(values)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=cluster, block=32, cluster=(cluster, 1, 1))

    x = cute.runtime.from_dlpack(np.zeros(64, np.int32), assumed_align=16)
    return compile_for(main, x, arch=arch_)


def instructions(found: Any) -> list[str]:
    """The inline PTX, with `$` for registers and without predicates that are made of registers."""
    lines = re.findall(r"// begin inline asm\n\t(.*)\n", found.artifacts["ptx"])
    lines = [re.sub(r"\{ \.reg \.pred p; setp\.ne\.b32 p, (\S+), 0; (.*;) \}", r"\2", line) for line in lines]
    return [re.sub(r"%\w+", "$", line) for line in lines]


class Form(NamedTuple):
    """An operation, and the PTX it becomes."""

    build: Callable[[Values], Any]
    text: str


def words(count: int) -> str:
    return "{" + ", ".join("$" * count) + "}"


def allocations(group: int) -> list[Form]:
    columns, same = cute.Int32, {"cta_group": group}
    return [
        *(
            Form(
                lambda v, n=n: tcgen05.tcgen05_alloc(v.smem, columns(n).ir_value(), **same),
                f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [$], {n};",
            )
            for n in (32, 64, 128, 256, 512)
        ),
        Form(
            lambda v: tcgen05.tcgen05_alloc(v.smem, v.word, **same),
            f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [$], $;",
        ),
        Form(
            lambda v: tcgen05.tcgen05_relinquish_alloc_permit(**same),
            f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;",
        ),
        Form(
            lambda v: tcgen05.tcgen05_dealloc(v.word, columns(512).ir_value(), **same),
            f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 $, 512;",
        ),
        Form(
            lambda v: tcgen05.tcgen05_dealloc(v.word, v.word, **same),
            f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 $, $;",
        ),
    ]


def mma(kind: str, group: int, tmem: bool, masks: int = 0, sparse: bool = False, **options: Any) -> Form:
    """`tcgen05.mma` without scales; attributes as of the operation."""

    def build(v: Values) -> None:
        a = v.word if tmem else v.wide
        lanes = [v.word] * masks
        if sparse:
            operands = (v.word, a, v.wide, v.word, v.flag, v.word, *lanes)
            tcgen05.tcgen05_mma_sp(*operands, kind=kind, cta_group=group, **options)
            return
        tcgen05.tcgen05_mma(v.word, a, v.wide, v.word, v.flag, *lanes, kind=kind, cta_group=group, **options)

    modifiers = ".ashift" if options.get("a_shift") else ""
    if "collector" in options:
        modifiers += f".collector::a::{options['collector']}"
    lanes = f"{words(masks)}, " if masks else ""
    last = f", {options['scale_input_d']}" if "scale_input_d" in options else ""
    a = "[$]" if tmem else "$"
    code = f"tcgen05.mma{'.sp' * sparse}.cta_group::{group}.kind::{kind}{modifiers} [$], {a}, $"
    return Form(build, f"{code}{', [$]' * sparse}, $, {lanes}p{last};")


def mmas(group: int, kinds: tuple[str, ...] = tcgen05_descriptors.KINDS) -> list[Form]:
    forms: list[Form] = []
    for kind in kinds:
        for tmem, sparse in itertools.product((False, True), repeat=2):
            make = functools.partial(mma, kind, group, tmem, sparse=sparse)
            forms += [make(), make(4 * group)]
            forms += [make(collector=each) for each in ("fill", "use", "lastuse", "discard")]
            if kind != "f8f6f4" and not (sparse and kind == "i8"):
                forms += [make(scale_input_d=7), make(4 * group, scale_input_d=15)]
        for sparse in (False, True):
            shifted = functools.partial(mma, kind, group, True, sparse=sparse, a_shift=True)
            forms += [shifted(), shifted(collector="lastuse")]
    return forms


def scaled_mma(kind: str, block: int, group: int, tmem: bool, collector: str | None = None) -> Form:
    def build(v: Values) -> None:
        a = v.word if tmem else v.wide
        tcgen05.tcgen05_mma_block_scale(
            v.word, a, v.wide, v.word, v.word, v.word, v.flag, kind, block, group, collector=collector
        )

    more = f".collector::a::{collector}" if collector else ""
    code = f"tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale.block{block}{more}"
    return Form(build, f"{code} [$], {'[$]' if tmem else '$'}, $, $, [$], [$], p;")


def scaled_mmas(group: int) -> list[Form]:
    blocks = [(kind, block) for kind, known in tcgen05.BLOCKS.items() for block in known]
    plain = [scaled_mma(kind, block, group, tmem) for kind, block in blocks for tmem in (False, True)]
    kept = ("fill", "use", "lastuse", "discard")
    return plain + [scaled_mma(kind, block, group, False, each) for kind, block in blocks for each in kept]


def stationary_mmas() -> list[Form]:
    forms: list[Form] = []
    for kind in tcgen05_descriptors.KINDS:
        for tmem, masks, collector in (
            (False, 0, None), (True, 1, None), (False, 1, "b0::fill"), (True, 0, "b1::use"), (False, 0, "b2::lastuse"),
            (False, 0, "b3::discard"),
        ):  # fmt: skip

            def build(v: Values, kind=kind, tmem=tmem, masks=masks, collector=collector) -> None:
                operands = [v.word, v.word if tmem else v.wide, v.wide, v.word, v.flag, *[v.wide] * masks]
                tcgen05.tcgen05_mma_ws(*operands, kind=kind, collector=collector)

            more = f".collector::{collector}" if collector else ""
            code = f"tcgen05.mma.ws.cta_group::1.kind::{kind}{more}"
            forms.append(Form(build, f"{code} [$], {'[$]' if tmem else '$'}, $, $, p{', $' * masks};"))
    return forms


def copies(group: int) -> list[Form]:
    forms = [
        Form(
            lambda v, s=shape, f=format_: tcgen05.tcgen05_cp(v.word, v.wide, s, group, f),
            f"tcgen05.cp.cta_group::{group}.{shape}{f'.b8x16.{format_}' if format_ else ''} [$], $;",
        )
        for shape in tensor_memory.CP_SHAPES
        for format_ in (None, "b6x16_p32", "b4x16_p64")
    ]
    head = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    mask = cute.Int16
    return forms + [
        Form(lambda v: tcgen05.tcgen05_shift(v.word, group), f"tcgen05.shift.cta_group::{group}.down [$];"),
        Form(lambda v: tcgen05.tcgen05_commit(v.mbarrier, cta_group=group), f"{head}.b64 [$];"),
        Form(
            lambda v: tcgen05.tcgen05_commit(v.mbarrier, mask(3).ir_value(), cta_group=group),
            f"{head}.multicast::cluster.b64 [$], $;",
        ),
    ]


def load_and_store(shape: str, repeat: int, packed: bool) -> list[Form]:
    split = 16 if shape == "16x32bx2" else None
    rest, registers = ", 16" if split else "", words(tensor_memory.ld_registers(shape, repeat))
    kept: list[Any] = []

    def load(v: Values) -> None:
        kept[:] = [tcgen05.tcgen05_ld(v.word, shape, repeat, split=split, pack=packed)]

    def store(v: Values) -> None:
        tcgen05.tcgen05_st(v.word, kept[0], shape, repeat, split=split, unpack=packed)

    ending = f"{shape}.x{repeat}{{}}.b32"
    return [
        Form(load, f"tcgen05.ld.sync.aligned.{ending.format('.pack::16b' * packed)} {registers}, [$]{rest};"),
        Form(store, f"tcgen05.st.sync.aligned.{ending.format('.unpack::16b' * packed)} [$]{rest}, {registers};"),
    ]


def loads_and_stores() -> list[Form]:
    forms: list[Form] = []
    for shape in tensor_memory.LD_SHAPES:
        for repeat in tensor_memory.repeats(shape):
            for packed in (False, True):
                forms += load_and_store(shape, repeat, packed)
    forms += [
        Form(lambda v, k=kind: tcgen05.tcgen05_wait(k), f"tcgen05.wait::{kind}.sync.aligned;") for kind in ("ld", "st")
    ]
    return forms + [
        Form(lambda v, k=kind: tcgen05.tcgen05_fence(k), f"tcgen05.fence::{kind};")
        for kind in ("before_thread_sync", "after_thread_sync")
    ]


def reductions() -> list[Form]:
    """All kinds of the smallest load, and one of each size."""
    floats = [{"abs": absolute, "nan": nan} for absolute in (False, True) for nan in (False, True)]
    kinds = [(what, "f32", each) for what in ("min", "max") for each in floats]
    kinds += [(what, type_, {}) for what in ("min", "max") for type_ in ("u32", "s32")]
    cases = [(2, *kind) for kind in kinds] + [
        (4, "max", "f32", {"abs": True, "nan": True}), (8, "max", "u32", {}), (16, "min", "s32", {}),
        (32, "max", "f32", {"abs": True}), (64, "min", "f32", {"nan": True}), (128, "max", "f32", {}),
    ]  # fmt: skip
    forms: list[Form] = []
    for shape in ("32x32b", "16x32bx2"):
        split = 16 if shape == "16x32bx2" else None
        rest = ", 16" if split else ""
        for repeat, what, type_, options in cases:
            more = ".abs" * options.get("abs", False) + ".NaN" * options.get("nan", False)
            forms.append(
                Form(
                    lambda v, s=(shape, repeat, what, type_), o=options, p=split: tcgen05.tcgen05_ld_red(
                        v.word, *s, split=p, **o
                    ),
                    f"tcgen05.ld.red.sync.aligned.{shape}.x{repeat}.{what}{more}.{type_} {words(repeat)}, $, [$]{rest};",
                )
            )
    return forms


def check(forms: list[Form], arch_: str = "sm_100a", cluster: int = 1) -> Any:
    """All forms in a kernel are the PTX they should be, and ptxas takes them."""

    def body(v: Values) -> None:
        for form in forms:
            form.build(v)

    found = compiled(body, arch_, cluster)
    assert instructions(found) == [form.text for form in forms]
    return found


def names(found: Any) -> list[str]:
    """The mnemonics of the machine code."""
    return [one.name for code in sass.kernels(found.executable.artifacts["sass"]).values() for one in code.instructions]


def count(found: Any, pattern: str) -> int:
    return sum(bool(re.fullmatch(pattern, name)) for name in names(found))


@needs_ptxas
@pytest.mark.parametrize("group", [1, 2])
def test_allocations(group):
    found = check(allocations(group), cluster=group)
    assert "sm_100a" in found.artifacts["ptx"]


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize("group", [1, 2])
def test_mmas_of_each_kind(group):
    """f16 and tf32 are UTCHMMA, f8f6f4 is UTCQMMA, i8 is UTCIMMA."""
    forms = mmas(group)
    found = check(forms, cluster=group)
    pair = r"\.2CTA" if group == 2 else ""
    for kinds, mnemonic in ((("f16", "tf32"), "UTCHMMA"), (("f8f6f4",), "UTCQMMA"), (("i8",), "UTCIMMA")):
        wanted = sum(f"kind::{kind} " in form.text or f"kind::{kind}." in form.text for form in forms for kind in kinds)
        assert count(found, rf"{mnemonic}{pair}(\..*)?") == wanted


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize("group", [1, 2])
def test_block_scaled_mmas(group):
    """mxf8f6f4 is UTCQMMA, fp4 is UTCOMMA."""
    forms = scaled_mmas(group)
    found = check(forms, cluster=group)
    wide = sum("mxf8f6f4" in form.text for form in forms)
    assert (count(found, r"UTCQMMA(\..*)?"), count(found, r"UTCOMMA(\..*)?")) == (wide, len(forms) - wide)


@needs_nvdisasm
def test_weight_stationary_mmas():
    found = check(stationary_mmas())
    assert count(found, r"UTC[HQI]MMA\.WS(\..*)?") == 24


@needs_nvdisasm
@pytest.mark.parametrize("group", [1, 2])
def test_copies_shift_and_commit(group):
    found = check(copies(group), cluster=group)
    assert count(found, r"UTCCP\..*") == 18
    pair = r"\.2CTA" if group == 2 else ""
    assert count(found, rf"UTCSHIFT{pair}\.DOWN") == 1
    assert (count(found, rf"UTCBAR{pair}"), count(found, rf"UTCBAR{pair}\.MULTICAST")) == (1, 1)


@needs_nvdisasm
def test_loads_and_stores_of_all_shapes():
    forms = loads_and_stores()
    assert len(forms) == 4 * 37 + 4
    found = check(forms)
    assert (count(found, r"LDTM(\..*)?"), count(found, r"STTM(\..*)?")) == (90, 90)  # 16x32bx2 is two instructions


@needs_ptxas
def test_loads_with_a_reduction():
    check(reductions(), "sm_103a")


LACKED = {"sm_100f": "kind::i8|shift|ld.red", "sm_103a": "kind::i8", "sm_110a": r"kind::(f16|tf32) .*p, \d"}
"""Forms that a chip has not: those with which others are refused below. scale-input-d is for floats on sm_100, sm_103."""


@pytest.mark.quick(1)
@needs_ptxas
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("arch_", LACKED)
def test_forms_of_the_other_chips(arch_, group):
    """ptxas takes the forms of the language that a chip has: all of them but a few."""
    forms = [
        *allocations(group),
        *mmas(group),
        *scaled_mmas(group),
        *copies(group),
        *load_and_store("32x32b", 32, False),
    ]
    forms += [*stationary_mmas(), *loads_and_stores(), *reductions()] if group == 1 else []
    check([form for form in forms if not re.search(LACKED[arch_], form.text)], arch_, cluster=group)


@needs_nvdisasm
def test_cluster_launch_control():
    query = "clusterlaunchcontrol.query_cancel"

    def body(v: Values) -> None:
        launch_control.clc_try_cancel(v.smem, v.mbarrier)
        launch_control.clc_try_cancel(v.smem, v.mbarrier, multicast=True)
        launch_control.clc_query_cancel(v.smem)

    found = compiled(body, cluster=2)
    head = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    one, all_, answer = instructions(found)
    assert (one, all_) == (f"{head}.b128 [$], [$];", f"{head}.multicast::cluster::all.b128 [$], [$];")
    assert f"{query}.is_canceled.pred.b128 p, q;" in answer
    assert f"@p {query}.get_first_ctaid.v4.b32.b128 {{$, $, $, _}}, q;" in answer
    assert count(found, r"UGETNEXTWORKID\.SELFCAST") == count(found, r"UGETNEXTWORKID\.BROADCAST") == 1


@needs_ptxas
def test_accumulate_that_is_known():
    def body(v: Values) -> None:
        for known in (False, True):
            flag = cute.Boolean(known).ir_value()
            tcgen05.tcgen05_mma(v.word, v.wide, v.wide, v.word, flag, kind="f16", cta_group=1)

    lines = re.findall(r"setp.ne.b32 p, (\S+), 0; tcgen05", compiled(body).artifacts["ptx"])
    assert lines == ["0", "1"]


@needs_ptxas
def test_matrix_descriptors_have_the_bits_of_sm_100():
    def body(v: Values) -> None:
        b = tcgen05.tcgen05_matrix_descriptor(v.smem, 16, 1024, "128b")
        tcgen05.tcgen05_mma(v.word, v.wide, b, v.word, v.flag, kind="f16", cta_group=1)

    ptx = compiled(body).artifacts["ptx"]
    wanted = tcgen05_descriptors.tcgen05_matrix_descriptor(0, 16, 1024, "128b")
    assert str(wanted) in ptx or str(wanted | 0x40) in ptx


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize("group", [1, 2])
def test_an_elected_thread_issues_a_main_loop_without_a_loop_over_lanes(group):
    """Four MMAs and a commit per k tile; the accumulator is loaded by 32 columns at a time."""
    steps = 4

    @cute.kernel
    def kernel(x: cute.Tensor, tiles: cute.Int32):
        t = arch.thread_idx()[0]
        a, b = (arch.alloc_smem(cute.Float16, rows * 64, 1024) for rows in (128, 128))
        holder, done = arch.alloc_smem(cute.Int32, 1), arch.alloc_smem(cute.Int64, 1)
        columns = cute.Int32(128).ir_value()
        if arch.warp_idx() == 0:
            tcgen05.tcgen05_alloc(holder.ir_value(), columns, cta_group=group)
        arch.sync_threads()
        address = holder.load()
        first, second = (tcgen05.tcgen05_matrix_descriptor(each.ir_value(), 16, 1024, "128b") for each in (a, b))
        idesc = tcgen05_descriptors.instruction_descriptor(
            "f16", "f16", "f16", "f32", 128 * group, 128, cta_group=group
        )
        if arch.warp_idx() == 0:
            for tile in range(tiles):
                arch.mbarrier_wait(done, tile % 2)
                with arch.elect_one():
                    for j in cutlass.range_constexpr(steps):
                        operands = [(cute.Int64._make(each) + 2 * j).ir_value() for each in (first, second)]
                        flag = cute.Boolean((tile > 0) if j == 0 else True).ir_value()
                        tcgen05.tcgen05_mma(
                            address.ir_value(),
                            *operands,
                            cute.Int32(idesc).ir_value(),
                            flag,
                            kind="f16",
                            cta_group=group,
                        )
                    tcgen05.tcgen05_commit(done.ir_value(), cta_group=group)
        arch.mbarrier_wait(done, tiles % 2)
        for part in cutlass.range_constexpr(4):
            place = address + (t // 32 << 21) + 32 * part
            words_ = cute.TensorSSA(tcgen05.tcgen05_ld(place.ir_value(), "32x32b", 32), (32,), cute.Int32)
            tcgen05.tcgen05_wait("ld")
            for i in cutlass.range_constexpr(32):
                x[t * 128 + 32 * part + i] = words_[i]
        arch.sync_threads()
        if arch.warp_idx() == 0:
            tcgen05.tcgen05_dealloc(address.ir_value(), columns, cta_group=group)

    @cute.jit
    def main(x: cute.Tensor, tiles: cute.Int32):
        kernel(x, tiles).launch(grid=group, block=128, cluster=(group, 1, 1))

    x = cute.runtime.from_dlpack(np.zeros(128 * 128, np.int32), assumed_align=16)
    found = compile_for(main, x, 4, arch="sm_100a")
    (code,) = sass.kernels(found.executable.artifacts["sass"]).values()
    pair = ".2CTA" if group == 2 else ""
    loops = [[one.name for one in loop.instructions] for loop in code.loops()]
    (main_loop,) = [loop for loop in loops if f"UTCHMMA{pair}" in loop]
    assert main_loop.count(f"UTCHMMA{pair}") == steps and main_loop.count(f"UTCBAR{pair}") == 1
    assert "BRA.U.ANY" not in main_loop
    assert count(found, r"LDTM\.x32") == 4
    (used,) = found.executable.resources.values()
    assert (used.stack, used.spill_stores, used.spill_loads) == (0, 0, 0)


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forms", "arch_", "words_"),
    [
        ([mma("f16", 1, False)], "sm_90a", "tcgen05 needs sm_100a"),
        ([mma("f16", 1, False)], "sm_120a", "tcgen05 needs sm_100a"),
        (stationary_mmas()[-1:], "sm_103a", "tcgen05.mma of kind::i8 needs sm_100a or sm_110a"),
        ([mma("i8", 1, False)], "sm_103a", "tcgen05.mma of kind::i8 needs sm_100a or sm_110a"),
        ([mma("f16", 1, False, scale_input_d=1)], "sm_110a", "tcgen05.mma with scale-input-d needs"),
        ([copies(1)[18]], "sm_100f", "tcgen05.shift needs"),
        (reductions()[:1], "sm_100a", "tcgen05.ld.red needs sm_103a"),
        (load_and_store("32x32b", 1, False)[:1], "sm_90a", "tcgen05 needs sm_100a"),
        (
            [Form(lambda v: launch_control.clc_try_cancel(v.smem, v.mbarrier), "")],
            "sm_90a",
            "clusterlaunchcontrol needs",
        ),
        (
            [Form(lambda v: launch_control.clc_try_cancel(v.smem, v.mbarrier, multicast=True), "")],
            "sm_100",
            "clusterlaunchcontrol.try_cancel with multicast needs",
        ),
    ],
)
def test_architectures_that_lack_it(forms, arch_, words_):
    with pytest.raises(DSLArchitectureError, match=re.escape(words_)):
        compiled(lambda v: forms[0].build(v), arch_)


def test_k_96_is_for_sm_103a():
    def body(v: Values) -> None:
        made = tcgen05_descriptors.block_scaled_instruction_descriptor
        idesc = made("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 128, 128, block=16, k96=True)
        known = cute.Int32(idesc - (1 << 32)).ir_value()
        tcgen05.tcgen05_mma_block_scale(v.word, v.wide, v.wide, known, v.word, v.word, v.flag, "mxf4nvf4", 16, 1)

    with pytest.raises(DSLArchitectureError, match="tcgen05.mma of fp4 with K = 96 needs sm_103a"):
        compiled(body)


def _with_next_chunk(v: Values) -> None:
    b = tcgen05.tcgen05_matrix_descriptor(v.smem, 0, 1024, "128b", v.smem)
    tcgen05.tcgen05_mma(v.word, v.wide, b, v.word, v.flag, kind="f16", cta_group=1)


def test_a_next_chunk_is_for_sm_103a():
    with pytest.raises(DSLArchitectureError, match="a descriptor with a next chunk needs sm_103a"):
        compiled(_with_next_chunk)


@needs_ptxas
def test_a_next_chunk_is_an_absolute_address():
    """Bit 52 is set, and the address is in the place of leading, too."""
    ptx = compiled(_with_next_chunk, "sm_103a").artifacts["ptx"]
    high = tcgen05_descriptors.tcgen05_matrix_descriptor(0, 0, 1024, "128b", absolute_leading=True)
    assert high >> 52 & 1
    known = {int(number) & (1 << 64) - 1 for number in re.findall(r"-?\d{15,}", ptx)}
    assert any(number & ~0x3FFF3FFF == high for number in known), known


def test_a_kernel_has_one_cta_group():
    def body(v: Values) -> None:
        mma("f16", 1, False).build(v)
        tcgen05.tcgen05_commit(v.mbarrier, cta_group=2)

    with pytest.raises(CompilerDiagnosticError, match="tcgen05_commit has cta_group 2 in a kernel with cta_group 1"):
        compiled(body)


@pytest.mark.parametrize("build", [mma("f16", 1, False).build, lambda v: launch_control.clc_query_cancel(v.smem)])
def test_the_cpu_target_has_them_too(build):
    @cute.kernel
    def kernel(x: cute.Tensor):
        shared, mbarrier = arch.alloc_smem(cute.Int32, 1024, 1024), arch.alloc_smem(cute.Int64, 1)
        word, wide, flag = x[0].ir_value(), cute.Int64(x[0]).ir_value(), (x[0] > 3).ir_value()
        build(Values(word, wide, flag, shared.ir_value(), mbarrier.ir_value()))

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    cute.compile(main, cute.runtime.from_dlpack(np.zeros(64, np.int32), assumed_align=16), target="cpu")
    units = (tcgen05.__name__, launch_control.__name__)
    assert {op.OPERATION_NAME for op in nvgpu.OPERATIONS if op.__module__ in units} <= HANDLERS.keys()
