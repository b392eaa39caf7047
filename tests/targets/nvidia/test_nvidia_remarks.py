# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Remarks on kernels, the checks of what kernels take, and runs that launch nothing."""

from __future__ import annotations

import inspect
import re
import warnings

import pytest
from nvidia_testing import floats, needs_nvdisasm, needs_ptxas

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.targets.nvidia import codegen, remarks
from kiln.targets.nvidia.runtime import KernelInfo
from kiln.testing import assert_no_local_memory, assert_no_spills, dry_run

pytestmark = needs_ptxas


@cute.kernel
def indexed(x: cute.Tensor, n: Int32):
    held = cute.make_rmem_tensor((64,), Float32)
    for i in kiln.range_constexpr(64):
        held[i] = x[i]
    x[0] = held[n]


@cute.jit
def launch_indexed(x: cute.Tensor, n: Int32):
    indexed(x, n).launch(grid=(2, 1, 1), block=(32, 1, 1))


@cute.kernel
def crowded(x: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    held = cute.make_rmem_tensor((96,), Float32)
    for i in kiln.range_constexpr(96):
        held[i] = x[t * 96 + i]
    for _ in range(n):
        for i in kiln.range_constexpr(96):
            held[i] = held[i] * held[(i + 7) % 96]
    for i in kiln.range_constexpr(96):
        x[t * 96 + i] = held[i]


@cute.jit
def launch_crowded(x: cute.Tensor, n: Int32):
    crowded(x, n).launch(grid=(1, 1, 1), block=(1024, 1, 1))


SAID = """ptxas info    : ({code}) {text} in function 'kernel'
ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
"""


@pytest.mark.parametrize(
    ("code", "text", "warns"),
    [
        (
            "C7519",
            "warpgroup.arrive is injected in around line 625 by compiler to allow use of registers in GMMA",
            False,
        ),
        ("C7514", "Potential Performance Loss: wgmma.mma_async instructions are serialized due to", True),
    ],
)
def test_fences_that_ptxas_adds_are_no_warning(code, text, warns):
    kernels, resources = [KernelInfo("kernel")], codegen.parse_resources(SAID.format(code=code, text=text))
    (remark,) = remarks.about_wgmma(kernels, resources)
    assert remark.message.startswith(code)
    with warnings.catch_warnings(record=True) as told:
        remarks.warn_of_slow_wgmma(kernels, resources)
    assert len(told) == warns


def line_of(function, text):
    """The line of a kernel's source that contains a text."""
    lines, start = inspect.getsourcelines(function.function)
    return start + next(number for number, line in enumerate(lines) if text in line)


def compile_with(function, *options, x=None):
    wanted = cute.compile[(cute.GPUArch("sm_90a"), *options)]
    return wanted(function, floats(64) if x is None else x, 3, target="nvidia")


@needs_nvdisasm
def test_local_memory_is_reported_at_its_line(capfd):
    compile_with(launch_indexed, cute.RemarkFilter("local-memory"))
    said = capfd.readouterr().err.splitlines()
    place = f"{__file__}:{line_of(indexed, 'held[n]')}: remark: local-memory: kernel indexed: 0 store and 1 load"
    assert any(line.startswith(place) for line in said), said
    assert not [line for line in said if "resources" in line]


@pytest.mark.quick(0)
@needs_nvdisasm
def test_spills_are_reported_also_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "0")
    x = floats(96 * 1024)
    for name in ("one", "two"):
        path = tmp_path / name
        compile_with(launch_crowded, cute.RemarkFilter("spill|resources"), cute.RemarkOutput(str(path)), x=x)
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "two").read_text()
    assert re.search(rf"test_nvidia_remarks.py:{line_of(crowded, 'held[(i + 7)')}: remark: spill: kernel crowded", text)
    assert f"{line_of(crowded, 'cute.kernel')}: remark: resources: kernel crowded: 64 registers" in text


@cute.kernel
def asks(x: cute.Tensor, n: Int32):
    for i in kiln.range(n, prefetch_stages=3):
        x[i] = x[i] + 1
    for i in kiln.range(n, vectorize=True):
        x[i] = x[i] * 2
    for i in kiln.range(n, vectorize=False):
        x[i] = x[i] - 1


@cute.jit
def launch_asks(x: cute.Tensor, n: Int32):
    asks(x, n).launch(grid=(1, 1, 1), block=(1, 1, 1))


def test_a_loop_with_a_hint_that_changes_nothing_is_named(capfd):
    compile_with(launch_asks, cute.RemarkFilter("remark: loop"))
    text = "".join(
        f"{__file__}:{line_of(asks, hint)}: remark: loop: kernel asks: {hint} changes nothing: the loop runs as it is written\n"
        for hint in ("prefetch_stages=3", "vectorize=True")
    )
    assert capfd.readouterr().err == text


def test_no_filter_no_remarks(capfd):
    compile_with(launch_indexed)
    assert "remark" not in capfd.readouterr().err


def test_a_filter_that_is_no_expression():
    with pytest.raises(DSLRuntimeError, match=r"RemarkFilter\('\('\) is no regular expression"):
        compile_with(launch_indexed, cute.RemarkFilter("("))


def test_the_checks():
    local, spilled = compile_with(launch_indexed), compile_with(launch_crowded, x=floats(96 * 1024))
    assert_no_spills(local)
    with pytest.raises(AssertionError, match="kernel indexed: .*of local memory"):
        assert_no_local_memory(local)
    with pytest.raises(AssertionError, match="spill: kernel crowded"):
        assert_no_spills(spilled)
    assert spilled.resources["crowded"].spill_stores > 0

    @cute.kernel
    def plain(x: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        x[t] = x[t] + 1

    @cute.jit
    def launch_plain(x: cute.Tensor, n: Int32):
        plain(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

    assert_no_local_memory(compile_with(launch_plain))
    on_cpu = cute.compile(launch_plain, floats(64), 3, target="cpu")
    with pytest.raises(AssertionError, match="no resources are known"):
        assert_no_spills(on_cpu)


def test_a_dry_run_notes_launches_and_makes_none():
    @cute.kernel
    def twice(x: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        memory = cute.make_tensor(cute.arch.alloc_smem(Float32, 64), cute.make_layout(64))
        memory[t] = x[t]
        cute.arch.sync_threads()
        x[t] = memory[63 - t]

    @cute.jit
    def launch_twice(x: cute.Tensor, n: Int32):
        for i in range(n):
            twice(x).launch(grid=(i + 1, 2, 1), block=(32, 1, 1), cluster=(1, 2, 1), smem=1000)

    with dry_run("sm_90a") as launches:
        launch_twice(floats(64), 3)
    assert [launch.grid for launch in launches] == [(1, 2, 1), (2, 2, 1), (3, 2, 1)]
    first = launches[0]
    assert (first.kernel, first.arch, first.block, first.cluster) == ("twice", "sm_90a", (32, 1, 1), (1, 2, 1))
    assert (first.smem, first.resources.static_smem, first.resources.smem) == (744, 256, 1000)
    assert ".entry twice" in first.artifacts["ptx"] and "launch_twice" in first.artifacts["mlir"]


@needs_ptxas
def test_dry_runs_are_for_the_architecture_of_the_environment(monkeypatch):
    @cute.kernel
    def first(x: cute.Tensor):
        x[cute.arch.thread_idx()[0]] = Float32(1)

    @cute.jit
    def launch_first(x: cute.Tensor):
        first(x).launch(grid=1, block=32)

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    with dry_run() as launches:
        launch_first(floats(64))
    assert launches[0].arch == "sm_80"


def test_sass_is_read():
    text = """
.text.one:
\t//## File "/a/b.py", line 12
        /*0010*/  STL.128 [R1], R16 ;
\t//## File "/a/b.py", line 13 inlined at "/a/c.py", line 4
        /*0020*/  LDL R5, [R4] ;
        /*0030*/  LDG.E R5, [R4] ;
.text.two:
        /*0040*/  @P0 STL [R7], R6 ;
"""
    assert remarks.local_accesses(text) == {
        "one": {("/a/b.py", 12): [1, 0], ("/a/b.py", 13): [0, 1]},
        "two": {("", 0): [1, 0]},
    }
