"""Copies of boxes and edits of tensor maps as PTX and SASS."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_nvdisasm, needs_ptxas, resources
from tma_testing import Box, Map, coordinates, tile

import kiln.cute as cute
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLArchitectureError
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.hardware import features
from kiln.hardware.architectures import Arch
from kiln.targets.nvidia import codegen

tma = nvgpu.tma
BOX = Box("f16", (64, 32), (64, 8), "128b")
CUBE = Box("f16", (64, 8, 8, 2), (64, 32), pixel_box=(0, 0, 0, 0))


def compiled(body: Any, box: Box = BOX, arch_: str = "sm_90a", cluster: int = 1) -> Any:
    """A kernel of one warp that does something with a map, shared memory, an mbarrier and global memory."""

    @cute.kernel
    def kernel(map_: Map, out: cute.Tensor):
        shared, full = tile(box.bytes), arch.alloc_smem(cute.Int64, 1)
        body(map_.address(), shared.iterator.ir_value(), full.ir_value(), out.iterator.ir_value())

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(x), out).launch(grid=cluster, block=32, cluster=(cluster, 1, 1))

    x = cute.runtime.from_dlpack(np.zeros(box.memory, np.uint8), assumed_align=16)
    return compile_for(main, x, x, arch=arch_)


def instructions(found: Any) -> list[str]:
    """The inline PTX, with `$` for registers."""
    ptx = found.artifacts["ptx"]
    lines = re.findall(r"// begin inline asm\n\t(.*)\n", ptx)
    return [re.sub(r"%\w+", "$", line) for line in lines]


def i16(value: int) -> Any:
    return cute.Int16(value).ir_value()


def i32(value: Any) -> Any:
    return cute.Int32(value).ir_value()


def i64(value: Any) -> Any:
    return cute.Int64(value).ir_value()


_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_PIXELS = "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
AT, ABOVE = (0, 8), (0, 1, 2, 0)

CASES: dict[str, tuple[Any, list[str]]] = {
    "load": (
        lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT)),
        [f"{_LOAD} [$], [$, {{$, $}}], [$];"],
    ),
    "multicast": (
        lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT), mask=i16(3), policy=i64(0x12F0000000000000)),
        [f"{_LOAD}.multicast::cluster.L2::cache_hint [$], [$, {{$, $}}], [$], $, $;"],
    ),
    "im2col": (
        lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*ABOVE), offsets=[i16(1), i16(2)], mask=i16(1)),
        [f"{_PIXELS}.multicast::cluster [$], [$, {{$, $, $, $}}], [$], {{$, $}}, $;"],
    ),
    "store": (
        lambda m, s, _f, _g: tma.tma_store(m, s, coordinates(*AT), policy=i64(7)),
        [f"{_STORE}.L2::cache_hint [$, {{$, $}}], [$], $;"],
    ),
    "store of pixels": (
        lambda m, s, _f, _g: tma.tma_store(m, s, coordinates(*ABOVE), im2col=True),
        ["cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [$, {$, $, $, $}], [$];"],
    ),
    "prefetch": (
        lambda m, _s, _f, _g: (
            tma.tensor_map_prefetch(m), tma.tma_prefetch(m, coordinates(*ABOVE)),
            tma.tma_prefetch(m, coordinates(*ABOVE), policy=i64(7)),
            tma.tma_prefetch(m, coordinates(*ABOVE), [i16(0), i16(0)]),
        ),
        [
            "prefetch.tensormap [$];", "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [$, {$, $, $, $}];",
            "cp.async.bulk.prefetch.tensor.4d.L2.global.tile.L2::cache_hint [$, {$, $, $, $}], $;",
            "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [$, {$, $, $, $}], {$, $};",
        ],
    ),
    "fences": (
        lambda m, s, _f, g: (
            tma.tensor_map_publish(g, s), tma.tensor_map_release("cta"), tma.tensor_map_acquire(g), tma.tensor_map_acquire(m, "sys")
        ),
        [
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [$], [$], 128;",
            "fence.proxy.tensormap::generic.release.cta;", "fence.proxy.tensormap::generic.acquire.gpu [$], 128;",
            "fence.proxy.tensormap::generic.acquire.sys [$], 128;",
        ],
    ),
    "edits": (
        lambda _m, s, _f, g: (
            tma.tensor_map_replace(s, "global_address", i64(4096)), tma.tensor_map_replace(g, "global_stride", i64(64), 3),
            tma.tensor_map_replace(s, "global_dim", i32(5), 4), tma.tensor_map_replace(s, "box_dim", i32(5), 1),
            tma.tensor_map_replace(s, "element_stride", i32(1), 2), tma.tensor_map_replace(s, "rank", i32(1)),
            tma.tensor_map_replace(s, "elemtype", i32(6)), tma.tensor_map_replace(s, "interleave_layout", i32(0)),
            tma.tensor_map_replace(s, "swizzle_mode", i32(3)), tma.tensor_map_replace(g, "fill_mode", i32(1)),
        ),
        [
            "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [$], $;",
            "tensormap.replace.tile.global_stride.b1024.b64 [$], 3, $;",
            "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [$], 4, $;",
            "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [$], 1, $;",
            "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [$], 2, $;",
            "tensormap.replace.tile.rank.shared::cta.b1024.b32 [$], $;",
            "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [$], 6;",
            "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [$], 0;",
            "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [$], 3;",
            "tensormap.replace.tile.fill_mode.b1024.b32 [$], 1;",
        ],
    ),
} | {
    f"reduction {kind}": (
        lambda m, s, _f, _g, kind=kind: tma.tma_store(m, s, coordinates(*AT), reduction=kind),
        [f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{kind}.tile.bulk_group [$, {{$, $}}], [$];"],
    )
    for kind in tma.REDUCTIONS
}  # fmt: skip


def test_copies_of_two_ctas_are_a_feature_of_the_architecture():
    body = lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT), cta_group=2)
    assert instructions(compiled(body, arch_="sm_100a")) == [f"{_LOAD}.cta_group::2 [$], [$, {{$, $}}], [$];"]
    with pytest.raises(DSLArchitectureError, match=r"\(CtaGroup.TWO\) needs sm_100a"):
        compiled(body)
    with pytest.raises(
        DSLArchitectureError, match="sm_120 has no tcgen05 and no tensor memory, but mma.sync with block"
    ):
        compiled(body, arch_="sm_120a")
    with pytest.raises(DSLArchitectureError, match="the same GPU has it in code for sm_103a or sm_103f"):
        compiled(body, arch_="sm_103")


_ROWS = (0, 5, 1, 2, 9)
_AT_ROWS = "[$, {$, $, $, $, $}]"
NEWER: dict[str, tuple[Any, list[str]]] = {
    "load for the leader of a pair": (
        lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT), mask=i16(3), cta_group=2, to_leader=True),
        ["mapa.shared::cluster.u32 $, $, $;", f"{_LOAD}.multicast::cluster.cta_group::2 [$], [$, {{$, $}}], [$], $;"],
    ),
    "gather": (
        lambda m, s, f, _g: (
            tma.tma_load(m, s, f, coordinates(*_ROWS), gather4=True),
            tma.tma_load(m, s, f, coordinates(*_ROWS), gather4=True, cta_group=2),
        ),
        [
            f"{_LOAD.replace('cluster', 'cta').replace('tile', 'tile::gather4')} [$], {_AT_ROWS}, [$];",
            f"{_LOAD.replace('tile', 'tile::gather4')}.cta_group::2 [$], {_AT_ROWS}, [$];",
        ],
    ),
    "scatter": (
        lambda m, s, _f, _g: tma.tma_store(m, s, coordinates(*_ROWS), scatter4=True),
        [f"{_STORE.replace('tile', 'tile::scatter4')} {_AT_ROWS}, [$];"],
    ),
    "atoms of swizzles": (
        lambda _m, s, _f, _g: tma.tensor_map_replace(s, "swizzle_atomicity", i32(1)),
        ["tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [$], 1;"],
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_operations_of_sm_100(name):
    body, expected = NEWER[name]
    assert instructions(compiled(body, arch_="sm_100a", cluster=2)) == expected
    with pytest.raises(DSLArchitectureError, match="sm_100"):
        compiled(body)


def test_a_feature_of_a_newer_ptx_version_is_refused(monkeypatch):
    monkeypatch.setattr(features, "CTA_PAIRS", dataclasses.replace(features.CTA_PAIRS, ptx=99))
    body = lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT), cta_group=2)
    with pytest.raises(DSLArchitectureError, match=r"\(CtaGroup.TWO\) needs PTX 9.9, and the assembler takes PTX \d"):
        compiled(body, arch_="sm_100a")


def test_a_module_has_the_ptx_version_its_features_need(monkeypatch):
    newest = codegen.supported_ptx(Arch["sm_100a"])
    body = lambda m, s, f, _g: tma.tma_load(m, s, f, coordinates(*AT), cta_group=2)
    assert ".version 8.8" in compiled(body, arch_="sm_100a").__ptx__
    monkeypatch.setattr(features, "CTA_PAIRS", dataclasses.replace(features.CTA_PAIRS, ptx=newest))
    assert f".version {newest / 10}" in compiled(body, arch_="sm_100a").__ptx__


@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_the_instruction_it_says(name):
    """ptxas takes it, too, where there is one."""
    body, expected = CASES[name]
    found = compiled(body, CUBE if any("4d" in line for line in expected) else BOX)
    assert instructions(found) == expected
    assert ".local" not in found.artifacts["ptx"]


@needs_ptxas
@pytest.mark.parametrize("arch_", ["sm_100a", "sm_120a"])
def test_later_architectures_take_all_of_them(arch_):
    def body(map_, shared, full, out):
        for name in CASES:
            CASES[name][0](map_, shared, full, out)

    wanted = [line for _, lines in CASES.values() for line in lines]
    # a load for the CTA alone has a form of its own
    wanted[0] = wanted[0].replace("shared::cluster", "shared::cta")
    assert instructions(compiled(body, arch_=arch_)) == wanted


def test_architectures_without_them_are_named():
    with pytest.raises(DSLArchitectureError, match="a tensor map needs sm_90"):
        compiled(CASES["load"][0], arch_="sm_80")
    with pytest.raises(DSLArchitectureError, match="editing a tensor map in a kernel needs"):
        compiled(CASES["edits"][0], arch_="sm_90")


@pytest.mark.parametrize("target", ["nvidia", "cpu"])
def test_a_kernel_makes_no_map(target):
    @cute.kernel
    def kernel(x: cute.Tensor):
        BOX.encode(x)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    x = cute.runtime.from_dlpack(np.zeros(BOX.memory, np.uint8), assumed_align=16)
    with pytest.raises(CompilerDiagnosticError, match="a kernel makes a tensor map") as caught:
        cute.compile(main, x, target=target)
    assert caught.value.span is not None


def test_what_an_instruction_has_as_part_of_itself_is_known():
    def body(_map, shared, _full, _out):
        tma.tensor_map_replace(shared, "swizzle_mode", i32(arch.thread_idx()[0]))

    with pytest.raises(
        CompilerDiagnosticError, match="the swizzle_mode of a tensor map is replaced by a number of the run"
    ):
        compiled(body)


@needs_nvdisasm
def test_one_elected_thread_copies_with_uniform_registers():
    """No operand becomes uniform under the predicate of the election: the hardware has no such instruction."""

    @cute.kernel
    def kernel(source: Map, target: Map, count: cute.Int32):
        bx, by, _ = arch.block_idx()
        warp = arch.make_warp_uniform(arch.warp_idx())
        shared, full = tile(2 * BOX.bytes), arch.alloc_smem(cute.Int64, 2)
        for k in range(count):
            stage = k % 2
            place = (shared.iterator + stage * BOX.bytes).ir_value()
            if warp == 0:
                with arch.elect_one():
                    arch.mbarrier_arrive_and_expect_tx(full + stage, BOX.bytes)
                    tma.tma_load(source.address(), place, (full + stage).ir_value(), coordinates(64 * bx, 8 * (by + k)))
            arch.mbarrier_wait(full + stage, (k // 2) % 2)
            if warp == 1:
                with arch.elect_one():
                    tma.tma_store(target.address(), place, coordinates(64 * bx, 8 * (by + k)))

    @cute.jit
    def main(x: cute.Tensor, y: cute.Tensor, count: cute.Int32):
        kernel(BOX.encode(x), BOX.encode(y), count).launch(grid=(2, 2, 1), block=128)

    x = cute.runtime.from_dlpack(np.zeros(BOX.memory, np.uint8), assumed_align=16)
    found = compile_for(main, x, x, cute.Int32(3))
    sass = found.artifacts["sass"]
    assert "UTMALDG.2D" in sass
    assert "UTMASTG.2D" in sass
    assert not re.search(r"@!?U?P\d\s+R2UR", sass)
    assert (resources(found).stack, resources(found).spill_stores) == (0, 0)
