# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""PTX, cubins and SASS: structure, resources, options, errors. No GPU is needed."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from nvidia_testing import ARCHITECTURES, compile_for, floats, needs_nvdisasm, needs_ptxas, resources

import kiln
import kiln.cute as cute
from kiln import BFloat16, Float16, Float32, Float64, Int8, Int16, Int32, Int64
from kiln.base_dsl.diagnostics import (
    CompilerDiagnosticError,
    DSLNotImplemented,
    DSLRuntimeError,
    DSLSubprocessCallError,
    DSLUserCodeError,
)
from kiln.hardware import toolchain
from kiln.hardware.architectures import Arch
from kiln.targets.nvidia import codegen
from kiln.targets.nvidia.math.f64 import FUNCTIONS
from kiln.targets.nvidia.ops.cute import printf_parts

pytestmark = needs_ptxas
arch = cute.arch


def launcher(kernel, block=128, grid=1, **options):
    """A jit function that launches a kernel of one tensor."""

    @cute.jit
    def run(x: cute.Tensor):
        kernel(x).launch(grid=(grid, 1, 1), block=(block, 1, 1), **options)

    return run


@cute.kernel
def double(x: cute.Tensor):
    t, _, _ = arch.thread_idx()
    x[None, t] = x[None, t].load() * 2.0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name):
    compiled = compile_for(launcher(double), floats(4, 128), arch=name)
    assert f".target {name}" in compiled.__ptx__
    assert compiled.__cubin__.startswith(b"\x7fELF")
    assert resources(compiled).registers > 0


def test_a_module_that_llvm_finds_wrong_is_an_error():
    text = """define void @f(i32 %a) {
      %x = add i32 %y, 1
      %y = add i32 %a, 1
      ret void
    }
    !llvm.module.flags = !{!0}
    !0 = !{i32 2, !"Debug Info Version", i32 3}
    """
    with pytest.raises(RuntimeError, match="does not dominate all uses"):  # LLVM itself would end the process
        codegen.optimize(text, Arch.sm_90a, 3)


def test_loops_are_unrolled_as_they_are_annotated():
    text = """define ptx_kernel void @k(ptr addrspace(1) %p) {
      br label %loop
    loop:
      %i = phi i32 [ 0, %0 ], [ %next, %loop ]
      %at = getelementptr i32, ptr addrspace(1) %p, i32 %i
      %old = load volatile i32, ptr addrspace(1) %at
      store volatile i32 %i, ptr addrspace(1) %at
      %next = add i32 %i, 1
      %again = icmp ult i32 %next, 64
      br i1 %again, label %loop, label %end, !llvm.loop !0
    end:
      ret void
    }
    !0 = distinct !{!0, !1}
    !1 = !{!"llvm.loop.unroll.count", i32 4}
    """
    assert str(codegen.optimize(text, Arch.sm_90a, 3)).count("load volatile") == 4


def test_accesses_to_a_threads_memory_are_as_wide_as_they_may_be():
    text = """define ptx_kernel void @k(ptr addrspace(1) %p, i32 %n) {
      %memory = alloca [8 x float], align 16
      %last = getelementptr float, ptr %memory, i32 4
      store volatile float 1.0, ptr %memory, align 4
      store volatile float 2.0, ptr %last, align 4
      %at = getelementptr float, ptr %memory, i32 %n
      %x = load float, ptr %at, align 4
      store float %x, ptr addrspace(1) %p, align 4
      ret void
    }"""
    optimized = str(codegen.optimize(text, Arch.sm_90a, 3))
    assert len(re.findall("store volatile float .*, align 16", optimized)) == 2


def test_what_looks_on_at_passes_does_so_once(monkeypatch):
    """LLVM's instruments live for a run, and the builder that was given to it would keep them."""
    used, original = [], codegen.unlocked

    def unlocked(name):
        function = original(name)
        return (lambda *args: (used.append(args[2]), function(*args))[1]) if "PassManager" in name else function

    monkeypatch.setattr(codegen, "unlocked", unlocked)
    text = "define void @f() { ret void } define void @g() { ret void }"
    codegen.optimize(text, Arch.sm_90a, 3)
    assert len(used) == 2
    assert len(set(map(id, used))) == len(used)


def test_what_nobody_needs_is_not_kept_for_later():
    @cute.kernel
    def roles(x: cute.Tensor, n: Int32):
        _ = (n + 127) // 128  # needed by nobody
        t, _, _ = arch.thread_idx()
        if t < 128:
            arch.barrier(barrier_id=1, number_of_threads=128)
            if n > 1:
                arch.barrier(barrier_id=2, number_of_threads=128)
                x[t] = n + 127
        else:
            arch.barrier(barrier_id=3, number_of_threads=128)
            if n > 2:
                arch.barrier(barrier_id=4, number_of_threads=128)
                x[t] = (n + 127) ^ t

    @cute.jit
    def run(x: cute.Tensor, n: Int32):
        roles(x, n).launch(grid=(1, 1, 1), block=(256, 1, 1))

    integers = cute.runtime.from_dlpack(np.zeros(256, np.int32))
    before, *of_roles = compile_for(run, integers, Int32(1)).__ptx__.split("bar.sync")
    sums = re.compile(r"add\.s32[^;]*, 127;")
    assert not sums.search(before)
    assert len(sums.findall("".join(of_roles))) == 2


def test_a_product_and_its_sum_are_one_instruction():
    @cute.kernel
    def scaled(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[t] = x[t] * x[t + 128] - x[t + 256] * x[t + 384]
        values = cute.make_tensor(x.iterator + 4 * t, cute.make_layout(4))
        values.store(values.load() * 3.0 + 1.0)

    ptx = compile_for(launcher(scaled), floats(1024)).__ptx__
    assert len(re.findall(r"fma\.rn\.f32", ptx)) == 5
    assert len(re.findall(r"mul\.(rn\.)?f32", ptx)) == 1
    assert not re.findall(r"(add|sub)\.(rn\.)?f32", ptx)


def test_expansions_keep_their_roundings():
    @cute.kernel
    def functions(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[t] = cute.math.exp(x[t])

    lowered = compile_for(launcher(functions), floats(128)).executable.artifacts["mlir_lowered"]
    assert "llvm.fmul" in lowered
    assert "contract" not in lowered


def column_major(dtype, rows, columns):
    return cute.runtime.from_dlpack(np.zeros((columns, rows), dtype).T, assumed_align=16)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
def test_sixteen_bytes_at_a_time(dtype):
    @cute.kernel
    def copy(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[None, t + 64] = x[None, t].load()

    compiled = compile_for(launcher(copy, 64), column_major(dtype, 16 // np.dtype(dtype).itemsize, 128))
    ptx = compiled.__ptx__
    wide = r"\.global\.(v4\.b32|v2\.b64)"
    assert len(re.findall(rf"ld{wide}", ptx)) == 1
    assert len(re.findall(rf"st{wide}", ptx)) == 1
    assert len(re.findall(r"(ld|st)\.global", ptx)) == 2


@pytest.mark.quick(4)
@needs_nvdisasm
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize(("name", "wide"), [("sm_90a", False), ("sm_100a", True), ("sm_120a", True)])
def test_thirty_two_bytes_at_a_time(dtype, name, wide):
    count = 32 // np.dtype(dtype).itemsize

    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[None, t] = x[None, t].load() + x[None, t].load()

    x = cute.runtime.make_fake_compact_tensor(
        {np.float32: Float32, np.float16: Float16, np.float64: Float64}[dtype],
        (count, 128),
        stride_order=(0, 1),
        assumed_align=32,
        memspace=cute.AddressSpace.gmem,
    )
    compiled = compile_for(launcher(kernel), x, arch=name)
    form = "v4.b64" if dtype == np.float64 else "v8.b32"
    assert (f"ld.global.{form}" in compiled.__ptx__) == wide
    assert (f"st.global.{form}" in compiled.__ptx__) == wide
    if dtype == np.float32 and name != "sm_120a":
        assert (".256" in compiled.__sass__) == wide


def test_accesses_know_their_space():
    @cute.kernel
    def through_shared(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        memory = cute.make_tensor(arch.alloc_smem(Float32, 128), cute.make_layout(128))
        memory[t] = x[t]
        arch.sync_threads()
        x[t] = memory[127 - t]

    ptx = compile_for(launcher(through_shared), floats(128)).__ptx__
    for access in ("ld.global", "st.global", "ld.shared", "st.shared", "bar.sync"):
        assert access in ptx
    assert not re.search(r"\b(ld|st)\.[bfv]", ptx)  # no generic ones
    assert re.search(r"\[%r\d+(\+\d+)?\]", ptx)  # 32-bit addresses of shared memory


@pytest.mark.parametrize("loop", ["range", "unroll_full", "constexpr"])
def test_register_tensors_stay_in_registers(loop):
    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        values = cute.make_rmem_tensor((16,), Float32)
        for i in kiln.range_constexpr(16):
            values[i] = x[i, t]
        total = Float32(0.0)
        if kiln.const_expr(loop == "range"):
            for i in range(16):
                total = total * 0.5 + values[15 - i]
        elif kiln.const_expr(loop == "unroll_full"):
            for i in kiln.range(16, unroll_full=True):
                total = total * 0.5 + values[15 - i]
        else:
            for i in kiln.range_constexpr(16):
                total = total * 0.5 + values[15 - i]
        x[0, t] = total

    compiled = compile_for(launcher(kernel), floats(16, 128))
    assert ".local" not in compiled.__ptx__
    assert resources(compiled).stack == 0


def test_loops_of_unknown_length_are_unrolled_only_on_request():
    def ptx_of(**options):
        @cute.kernel
        def kernel(x: cute.Tensor, n: Int32):
            t, _, _ = arch.thread_idx()
            total = Float32(0.0)
            for i in kiln.range(n, **options):
                total = total + x[i, t]
            x[0, t] = total

        @cute.jit
        def run(x: cute.Tensor, n: Int32):
            kernel(x, n).launch(grid=(1, 1, 1), block=(128, 1, 1))

        return compile_for(run, floats(64, 128), 5).__ptx__

    assert ptx_of().count("ld.global") == 1
    assert ptx_of(unroll=1).count("ld.global") == 1
    assert ptx_of(unroll=4).count("ld.global") >= 4


def test_what_a_launch_promises_is_in_the_kernel():
    ptx = compile_for(launcher(double, 128), floats(4, 128)).__ptx__
    assert ".reqntid 128, 1, 1" in ptx
    ptx = compile_for(launcher(double, 128, min_blocks_per_mp=3), floats(4, 128)).__ptx__
    assert ".minnctapersm 3" in ptx
    ptx = compile_for(launcher(double, 128, 4, cluster=(2, 1, 1)), floats(4, 128)).__ptx__
    assert ".reqnctapercluster 2, 1, 1" in ptx
    ptx = compile_for(launcher(double, 128, max_number_threads=[256, 1, 1]), floats(4, 128)).__ptx__
    assert ".maxntid 256" in ptx
    assert ".reqntid" not in ptx
    with pytest.raises(TypeError, match="max_number_threads"):
        compile_for(launcher(double, 128, max_number_threads=["many"]), floats(4, 128))


def test_a_block_of_unknown_size_promises_nothing():
    @cute.jit
    def run(x: cute.Tensor, n: Int32):
        double(x).launch(grid=(1, 1, 1), block=(n, 1, 1))

    assert "ntid" not in compile_for(run, floats(4, 128), 64).__ptx__.split(".entry")[1].split("{")[0]


def test_names_are_readable():
    compiled = compile_for(launcher(double), floats(4, 128))
    assert ".entry double(" in compiled.__ptx__
    assert list(compiled.executable.resources) == ["double"]


class _Doubling:
    @cute.kernel
    def kernel(self, x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[t] = x[t] * 2

    @cute.jit
    def __call__(self, x: cute.Tensor):
        self.kernel(x).launch(grid=1, block=32)


def test_a_method_is_named_with_its_class():
    assert ".visible .entry Doubling_kernel(" in compile_for(_Doubling(), floats(128)).__ptx__


@pytest.mark.parametrize("dtype", [Float16, BFloat16, Float32, Float64, Int8, Int64])
def test_arithmetic_of_every_type_assembles(dtype):
    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        a = dtype(x[t])
        b = a * a + dtype(3) - a
        c = b / dtype(7) if kiln.const_expr(dtype.is_float) else b // dtype(7) + b % dtype(5)
        x[t] = Float32(c) if c > dtype(1) else Float32(-c)

    for name in ("sm_80", "sm_90a"):
        compile_for(launcher(kernel), floats(128), arch=name)


@pytest.mark.quick(10)
@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "sqrt", "rsqrt", "erf", "atan"]
)
@pytest.mark.parametrize("dtype", [Float32, Float16])
def test_functions_need_no_library(name, dtype, monkeypatch):
    function = getattr(cute.math, name)

    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[None, t] = function(x[None, t].load().to(dtype)).to(Float32)

    monkeypatch.setattr(toolchain, "find", lambda name: None)
    compiled = compile_for(launcher(kernel), floats(4, 128))
    assert ".extern" not in compiled.__ptx__
    assert ".local" not in compiled.__ptx__


@needs_ptxas
def test_functions_of_doubles_need_no_library():
    names = sorted({*FUNCTIONS} - {"powf", "atan2"})

    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        for name in kiln.range_constexpr(len(names)):
            x[t] = x[t] + Float32(getattr(cute.math, names[name])(Float64(x[t])))
        x[t] = x[t] + Float32(cute.math.pow(Float64(x[t]), Float64(3.5)))
        x[t] = x[t] + cute.math.erfc(x[t]) + cute.math.atan2(Float32(x[t]), Float32(2.0))

    compiled = compile_for(launcher(kernel), floats(128))
    assert ".extern" not in compiled.__ptx__
    assert ".local" not in compiled.__ptx__
    assert compiled.__ptx__.count("kiln_turns[") == 1  # sin, cos and tan share their table
    assert resources(compiled).spill_stores == 0


@pytest.mark.parametrize("flag", ["--fmad=false", "-fmad=false"])
def test_a_product_and_a_sum_are_rounded_twice_if_asked(flag):
    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        x[t] = x[t] * x[t] + x[t]

    ptx = compile_for(launcher(kernel), floats(128), options=f"--ptxas-options {flag}").__ptx__
    assert "mul.rn.f32" in ptx
    assert "fma" not in ptx


def test_printing_more_than_a_call_takes():
    assert printf_parts("a %d 100%% %5.2f\n") == [("a %d 100%% %5.2f\n", 2)]
    assert printf_parts("text") == [("text", 0)]
    parts = printf_parts("[" + "%lld," * 70 + "]%%")
    assert [count for _, count in parts] == [32, 32, 6]
    assert "".join(text for text, _ in parts) == "[" + "%lld," * 70 + "]%%"

    @cute.kernel
    def kernel(x: cute.Tensor):
        cute.printf("{}", [Int32(x[i]) for i in range(70)])

    ptx = compile_for(launcher(kernel), floats(128)).__ptx__
    assert len(re.findall(r"call.*vprintf", ptx)) == 3


def test_barriers_are_not_copied_into_branches():
    @cute.kernel
    def kernel(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        value = x[t]
        if value > 0.0:
            value = value * 3.0
        else:
            value = value - 1.0
        arch.barrier(barrier_id=3, number_of_threads=128)
        if value > 0.0:
            x[t] = value
        else:
            x[127 - t] = value

    assert compile_for(launcher(kernel), floats(128)).__ptx__.count("bar.sync") == 1


def test_the_size_of_dynamic_shared_memory():
    def ptx_of(count, own=False):
        @cute.kernel
        def kernel(x: cute.Tensor):
            t, _, _ = arch.thread_idx()
            memory = cute.make_tensor(arch.alloc_smem(Float32, count), cute.make_layout(count))
            memory[t] = x[t]
            if own:
                (arch.get_dyn_smem(Float32) + t).store(x[t])
            x[t] = Float32(arch.dynamic_smem_size()) + memory[127 - t]

        return compile_for(launcher(kernel), floats(128)).__ptx__

    # what the launch gave, where the kernel has such memory of its own: 80000 bytes, rounded up, lie in front of it
    assert "-80896" in ptx_of(20_000, own=True)
    assert "-80896" not in ptx_of(2_000, own=True)
    # else all that a block has: static shared memory is added
    assert re.search(r"add.*, 8000;", ptx_of(2_000))
    assert "80896" not in ptx_of(20_000)


# --- source lines ----------------------------------------------------------------------------------------------------


def test_lines_of_the_program():
    ptx = compile_for(launcher(double), floats(4, 128), options="--generate-line-info").__ptx__
    assert re.search(r"\.file\s+\d+ .*test_nvidia_codegen\.py", ptx)
    assert ".loc" in ptx
    assert ", debug" not in ptx
    assert ".loc" not in compile_for(launcher(double), floats(4, 128)).__ptx__


@needs_nvdisasm
def test_lines_reach_sass():
    sass = compile_for(launcher(double), floats(4, 128), options="--generate-line-info").__sass__
    assert "test_nvidia_codegen.py" in sass
    assert "LDG.E" in sass


# --- options ---------------------------------------------------------------------------------------------------------


def test_options_reach_ptxas():
    @cute.kernel
    def hungry(x: cute.Tensor):
        t, _, _ = arch.thread_idx()
        values = [x[i, t] for i in range(64)]
        arch.sync_threads()
        for i in kiln.range_constexpr(64):
            x[63 - i, t] = values[i]

    @cute.jit
    def run(x: cute.Tensor, n: Int32):  # ptxas ignores the option where the block's size is known
        hungry(x).launch(grid=(1, 1, 1), block=(n, 1, 1))

    free = compile_for(run, floats(64, 128), 128)
    tight = compile_for(run, floats(64, 128), 128, options="--ptxas-options '--maxrregcount 32'")
    assert resources(free).registers > 64
    assert resources(tight).registers <= 32
    assert resources(tight).spill_stores > 0 or resources(tight).stack > 0
    with pytest.raises(CompilerDiagnosticError, match="ptxas rejected"):
        compile_for(run, floats(64, 128), 128, options="--ptxas-options '--no-such-option'")


@needs_nvdisasm
def test_kernels_beside_each_other(monkeypatch):
    """What ptxas makes of kernels with a thread for each is what it makes of them one after the other."""

    @cute.kernel
    def total(x: cute.Tensor):
        found = Float32(0.0)
        for i in range(x.shape[1]):
            found = found + x[0, i]
        x[0, 0] = found

    @cute.jit
    def both(x: cute.Tensor):
        double(x).launch(grid=1, block=128)
        total(x).launch(grid=1, block=1)

    beside = compile_for(both, floats(4, 128))
    monkeypatch.setattr(codegen, "_SPLITS", 99)
    after = compile_for(both, floats(4, 128))
    asked = int((codegen.ptxas_version() or "0").partition(".")[0]) >= 13
    assert [b"split-compile" in x.__cubin__ for x in (beside, after)] == [asked, False]
    assert sorted(beside.executable.resources) == ["double", "total"]
    assert beside.executable.resources == after.executable.resources
    assert beside.__sass__ == after.__sass__


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_optimization_levels(level):
    assert compile_for(launcher(double), floats(4, 128), options=f"--opt-level {level}").__cubin__


def test_kept_files(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", str(tmp_path))
    compile_for(launcher(double), floats(4, 128), options="--keep-ptx --keep-cubin")
    names = {path.name.split(".", 1)[1] for path in tmp_path.iterdir()}
    assert {"sm_90a.ptx", "sm_90a.cubin"} <= names


def test_the_environment_chooses_the_architecture(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_89")
    compiled = cute.compile(launcher(double), floats(4, 128), target="nvidia")
    assert ".target sm_89" in compiled.__ptx__


def test_an_unknown_architecture():
    with pytest.raises(DSLRuntimeError, match="sm_91"):
        compile_for(launcher(double), floats(4, 128), arch="sm_91")


def test_without_ptxas_there_is_ptx(monkeypatch):
    monkeypatch.setattr(codegen, "_ptxas", lambda: None)
    monkeypatch.setattr(codegen, "ptxas_version", lambda: None)
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    compiled = compile_for(launcher(double), floats(4, 128))
    assert ".entry double" in compiled.__ptx__
    assert compiled.__cubin__ is None
    assert compiled.__sass__ is None


def test_without_nvdisasm(monkeypatch):
    find = toolchain.find
    monkeypatch.setattr(toolchain, "find", lambda name: None if name == "nvdisasm" else find(name))
    with pytest.raises(DSLSubprocessCallError, match="nvdisasm was not found"):
        _ = compile_for(launcher(double), floats(4, 128)).__sass__


@pytest.mark.parametrize(
    ("name", "cuda", "version"),
    [
        ("sm_80", "12.4", 84),
        ("sm_90a", "13.1", 88),
        ("sm_90a", None, 88),
        ("sm_103a", "12.9", 88),
        ("sm_121a", "13.0", 88),
        ("sm_80", "12.0", 80),
        ("sm_110a", "13.4", 90),
        ("sm_107a", "13.4", 94),
        ("sm_100a", "12.8", 87),
        ("sm_100f", "12.8", 88),
    ],
)
def test_ptx_versions(name, cuda, version):
    assert codegen.ptx_version(Arch[name], cuda) == version


def test_ptx_of_cuda_releases():
    releases = {"13.0.88": 90, "13.1": 91, "13.2": 92, "13.3": 93, "13.4.92": 94, "14.0": 94, "11.8": 80}
    assert {cuda: toolchain.newest_ptx_of(cuda) for cuda in releases} == releases


@needs_ptxas
@pytest.mark.skipif(toolchain.newest_ptx_of(codegen.ptxas_version() or "0") < 94, reason="sm_107 needs CUDA 13.4")
@pytest.mark.parametrize("name", ["sm_107", "sm_107a", "sm_107f"])
def test_an_architecture_that_llvm_does_not_know(name):
    compiled = compile_for(launcher(double), floats(4, 128), arch=name)
    assert compiled.__cubin__
    assert f".version 9.4\n.target {name}\n" in compiled.__ptx__


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_89", (9, 0), False),
    ],
)
def test_where_code_runs(name, capability, runs):
    assert Arch[name].runs_on(capability) is runs


def test_resources_as_ptxas_prints_them():
    said = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 16 bytes cumulative stack size, 528 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Used 8 registers, used 0 barriers
"""
    found = codegen.parse_resources(said)
    assert found["one"] == codegen.Resources(40, 4, 8, 16, 528, 0, 2)
    assert found["two"].registers == 8


# --- errors ----------------------------------------------------------------------------------------------------------


def _smem(kind, count):
    return arch.alloc_smem(kind, count, 16)


LACKING = {
    "a cluster barrier": (lambda x: arch.cluster_arrive(), "sm_80", "sm_90"),
    "fence.acq_rel.cluster": (lambda x: arch.fence_acq_rel_cluster(), "sm_89", "sm_90"),
    "griddepcontrol": (lambda x: arch.griddepcontrol_wait(), "sm_86", "sm_90"),
    "setmaxnreg": (lambda x: arch.setmaxregister_decrease(24), "sm_90", "sm_90a"),
    "redux.sync of f32": (lambda x: arch.warp_redux_sync(Float32(1.0), "fmax"), "sm_90a", "sm_100a"),
    "redux.sync of f32 ": (lambda x: arch.warp_redux_sync(Float32(1.0), "fmax"), "sm_120a", "sm_100a"),
    "an access at the scope of a cluster": (
        lambda x: arch.load(x.iterator, Float32, sem="acquire", scope="cluster"), "sm_80", "sm_90",
    ),
    "a bulk copy": (lambda x: arch.cp_async_bulk_commit_group(), "sm_80", "sm_90"),
    "an mbarrier that counts bytes": (lambda x: arch.mbarrier_expect_tx(_smem(Int64, 1), 16), "sm_80", "sm_90"),
    "shared memory of another block": (lambda x: arch.map_dsmem_ptr(_smem(Int32, 4), 1).store(Int32(1)), "sm_80", "sm_90"),
}  # fmt: skip


@pytest.mark.parametrize("what", LACKING)
def test_an_instruction_the_architecture_lacks(what):
    body, name, needed = LACKING[what]

    @cute.kernel
    def kernel(x: cute.Tensor):
        body(x)

    with pytest.raises(
        DSLUserCodeError, match=f"{what.strip()} needs {needed} or .*, and this is compiled for {name}"
    ) as caught:
        compile_for(launcher(kernel), floats(128), arch=name)
    assert caught.value.span.filename == __file__
    assert "--gpu-arch" in caught.value.hint
    assert isinstance(caught.value, DSLNotImplemented)


@needs_ptxas
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_atomics_of_every_type_assemble(name):
    kinds = (Float16, BFloat16, Float32, Float64, Int16, Int32, Int64)

    @cute.kernel
    def kernel(x: cute.Tensor):
        for number in kiln.range_constexpr(len(kinds)):
            kind = kinds[number]
            for pointer in (cute.recast_ptr(x.iterator, dtype=kind), arch.alloc_smem(kind, 4)):
                for operation in (arch.atomic_add, arch.atomic_max, arch.atomic_min, arch.atomic_exch):
                    operation(pointer, kind(1))

    compile_for(launcher(kernel), floats(128), arch=name)


def test_what_ptxas_rejects_is_shown():
    @cute.kernel
    def kernel(x: cute.Tensor):
        arch.inline_ptx("no.such.instruction;")

    with pytest.raises(
        CompilerDiagnosticError, match=r"ptxas rejected the code of run for sm_90a(.|\n)*no\.such\.instruction"
    ):
        compile_for(launcher(kernel), floats(128))


def test_a_kernel_with_a_name_twice():
    @cute.jit
    def run(x: cute.Tensor):
        double(x).launch(grid=(1, 1, 1), block=(128, 1, 1))
        double(x).launch(grid=(1, 1, 1), block=(64, 1, 1))

    compiled = compile_for(run, floats(4, 128))
    assert len(compiled.executable.resources) == 2
    assert ".reqntid 64, 1, 1" in compiled.__ptx__


def test_a_function_without_kernels():
    @cute.jit
    def run(x: Int32):
        return x * 2

    compiled = cute.compile(run, 1, target="nvidia", options="--gpu-arch sm_90a")
    assert compiled(21) == 42
    assert compiled.__ptx__ is None


def test_artefacts():
    compiled = compile_for(launcher(double), floats(4, 128))
    assert "cuda.launch_ex" in compiled.__mlir__
    assert "define" in compiled.__llvm__
    assert "target triple" in compiled.__llvm__
    assert "llvm.func @double" in compiled.artifacts["mlir_lowered"]


@needs_ptxas
def test_ptxas_of_several_threads_overlaps(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    together = threading.Barrier(2, timeout=60)
    run = codegen.subprocess.run

    def meet(*args, **kwargs):
        together.wait()  # breaks unless both are here at a time
        return run(*args, **kwargs)

    monkeypatch.setattr(codegen.subprocess, "run", meet)
    codes = {}

    def work(factor):
        @cute.kernel
        def kernel(x: cute.Tensor):
            t, _, _ = arch.thread_idx()
            x[t] = x[t] * factor

        codes[factor] = compile_for(launcher(kernel), floats(128)).__ptx__

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (3.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "0f40400000" in codes[3.0]
    assert "0f40A00000" in codes[5.0]


@pytest.mark.skipif(toolchain.newest_ptx_of(codegen.ptxas_version() or "12.8") < 92, reason="ptxas takes PTX below 9.2")
def test_inline_ptx_may_need_a_newer_version():
    """ptxas says which version an instruction needs that Kiln does not know by itself."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        pair = arch.inline_ptx(
            "cvt.rn.bf16x2.e4m3x2 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[Int16(0x3838)]
        )
        x[0] = Float32(pair)

    ptx = compile_for(launcher(kernel), floats(4), arch="sm_100a", options="--keep-ptx").__ptx__
    assert ".version 9.2" in ptx
    with pytest.raises(CompilerDiagnosticError, match="not supported on .target 'sm_90a'"):
        compile_for(launcher(kernel), floats(4))
