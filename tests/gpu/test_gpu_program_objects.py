# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""On a GPU: objects of a program's own that hold tensors, places of None arguments, operations on raw pointers, `.rz`."""

from __future__ import annotations

import pytest
from cutlass._mlir.dialects import llvm, nvvm  # pyright: ignore[reportMissingImports]
from cutlass.cutlass_dsl import T  # pyright: ignore[reportMissingImports]

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.base_dsl.typing import get_c_pointers, get_mlir_types
from kiln.cute.runtime import from_dlpack, make_fake_stream

torch = pytest.importorskip("torch")


class Parts:
    """Hands the protocol of arguments on to what it holds."""

    def __init__(self, *parts):
        self.parts = parts

    def __get_mlir_types__(self):
        return get_mlir_types(self.parts)

    def __c_pointers__(self):
        return get_c_pointers(self.parts)

    def __extract_mlir_values__(self):
        return [v for p in self.parts for v in kiln.extract_mlir_values(p)]

    def __new_from_mlir_values__(self, values):
        made, rest = [], list(values)
        for p in self.parts:
            count = len(get_mlir_types(p))
            made.append(kiln.new_from_mlir_values(p, rest[:count]))
            rest = rest[count:]
        return Parts(*made)


def test_objects_that_hold_tensors():
    @cute.kernel
    def kernel(p: Parts, y: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        x, z, factor = p.parts
        total = Float32(0.0)
        for i in range(t + 1):
            if i % 2 == 0:
                total += x[i] * factor
        y[t] = total + z[t]

    @cute.jit
    def main(p: Parts, y: cute.Tensor):
        kernel(p, y).launch(grid=1, block=8)

    results = []
    for target, device in (("cpu", "cpu"), ("nvidia", "cuda")):
        with kiln.target(target):
            x = torch.arange(32, device=device).float()[::2]
            z, y = torch.ones(8, device=device), torch.zeros(8, device=device)
            main(Parts(from_dlpack(x).mark_layout_dynamic(), from_dlpack(z), Float32(3.0)), from_dlpack(y))
            results.append(y.cpu())
    assert torch.equal(*results)
    assert results[0][2] == 13.0


def test_none_keeps_its_place_beside_a_stream():
    @cute.jit
    def main(x: cute.Tensor, bias, y: cute.Tensor, stream):
        _copy(x, y).launch(grid=1, block=4, stream=stream)

    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    with kiln.target("nvidia"):
        compiled = cute.compile(main, from_dlpack(x), None, from_dlpack(y), stream, options="--enable-tvm-ffi")
        for _ in range(8):
            y.zero_()
            compiled(x, None, y)
            assert torch.equal(x, y)
        with pytest.raises(ValueError, match="Mismatched argument #0"):
            compiled(torch.ones(5, device="cuda"), None, y)
        with pytest.raises(ValueError, match="memory of the host"):
            compiled(torch.ones(4), None, y)


@cute.kernel
def _copy(x: cute.Tensor, y: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    y[t] = x[t]


@cute.kernel
def _raw(out: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    base = out.iterator
    nvvm.atomicrmw(op=nvvm.AtomicOpKind.FADD, ptr=base.llvm_ptr, a=Float32(0.5).ir_value())
    llvm.atomicrmw(llvm.AtomicBinOp.fadd, (base + 1).llvm_ptr, Float32(2.0).ir_value(), llvm.AtomicOrdering.monotonic)
    if t == 0:
        out[2] = Float32(nvvm.fmax(Float32(1.0).ir_value(), Float32(5.0).ir_value(), c=Float32(3.0).ir_value()))
        llvm.store(llvm.load(T.f32(), (base + 2).llvm_ptr), (base + 3).llvm_ptr)
        third = Float32(Int32(3) + t)
        for n, way in enumerate(("rz", "rm", "rp")):
            for sign in kiln.range_constexpr(2):
                number = Float32(1.0 - 2 * sign).ir_value()
                text = f"div.{way}.f32 $0, $1, $2;"
                made = llvm.inline_asm(T.f32(), [number, third.ir_value()], text, "=f,f,f")
                out[4 + 2 * n + sign] = Float32(made)


def test_raw_operations_and_directed_rounding():
    @cute.jit
    def main(out: cute.Tensor):
        _raw(out).launch(grid=1, block=32)

    results = []
    for target, device in (("cpu", "cpu"), ("nvidia", "cuda")):
        out = torch.zeros(10, device=device)
        cute.compile(main, from_dlpack(out), target=target)(from_dlpack(out))
        results.append(out.cpu())
    assert torch.equal(*results), results
    assert results[0][:4].tolist() == [16.0, 64.0, 5.0, 5.0]
