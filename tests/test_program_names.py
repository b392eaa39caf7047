"""Names that programs know: modules reached as attributes, operations on values of the bindings, small classes."""

from __future__ import annotations

import numpy as np
import pytest
from cutlass._mlir.dialects import arith, nvvm, vector  # pyright: ignore[reportMissingImports]
from cutlass.cutlass_dsl import T  # pyright: ignore[reportMissingImports]

import cutlass
import kiln
from kiln import Float32, Int32, Int64, Uint32, cute
from kiln.cute.nvgpu import OperandMajorMode
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def test_modules_are_attributes(child):
    """In a process of their own: another test may have imported them."""
    text = (
        "import cutlass\n"
        "print(cutlass.base_dsl.runtime.cuda.__name__, cutlass.base_dsl.enums.Arch.sm_90)\n"
        "print(cutlass._mlir.ir.Value.__name__, cutlass._mlir.dialects.llvm.LoadOp.__name__)\n"
        "for wrong in ('base_dsl.nothing', 'nothing', '_mlir.nothing'):\n"
        "    found = cutlass\n"
        "    try:\n"
        "        for part in wrong.split('.'): found = getattr(found, part)\n"
        "    except AttributeError as e: print(e)\n"
    )
    done = child("-c", text)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["kiln.cuda Arch.sm_90", "Value LoadOp"], done.stderr
    assert len(lines) == 5
    assert all("has no attribute 'nothing'" in line for line in lines[2:])


def test_the_major_mode_of_operands():
    row, column = cutlass.utils.LayoutEnum.ROW_MAJOR, cutlass.utils.LayoutEnum.COL_MAJOR
    assert row.mma_major_mode() is row.sm90_mma_major_mode() is OperandMajorMode.K
    assert column.mma_major_mode() is column.sm90_mma_major_mode() is OperandMajorMode.MN


def test_accesses_take_a_location():
    @cute.jit
    def main(x: cute.Tensor):
        kind = type(x)
        first = kind.__getitem__(x, 0, loc=None, ip=None)
        kind.__setitem__(x, 1, first + 1.0, loc=None, ip=None)
        v = x.load()
        x[2] = type(v).__getitem__(v, 1, loc=None, ip=None)

    x = np.ones(4, np.float32)
    main(from_dlpack(x))
    np.testing.assert_array_equal(x, [1, 2, 2, 1])


def test_vectors_are_operands_of_operations():
    @cute.jit
    def main(x: cute.Tensor):
        v = x.load()
        doubled = cutlass.Vector(arith.addf(v, v))
        assert isinstance(v, cutlass.Vector)
        x.store(doubled.reshape(v.shape))
        x[0] = Float32(vector.extract(doubled, [], [3]))
        made = cutlass.Vector.from_elements((x[1], x[2]), Float32)
        x[3] = made[0] + made[1]
        bits = made.bitcast(cutlass.Int64).to_elements()[0]
        low, high = cutlass.Vector.from_elements((bits,), cutlass.Int64).bitcast(Float32).to_elements()
        x[1], x[2] = high, low

    x = np.arange(4, dtype=np.float32)
    main(from_dlpack(x))
    np.testing.assert_array_equal(x, [6, 4, 2, 6])


def test_what_is_no_value_is_still_refused():
    @cute.jit
    def main(x: cute.Tensor):
        arith.addf(x.load(), "text")

    with pytest.raises(ValueError, match="must be a Value"):
        main(from_dlpack(np.ones(4, np.float32)))


def _run(kernel, *arrays, block=4):
    @cute.jit
    def main(*tensors: cute.Tensor):
        kernel(*tensors).launch(grid=1, block=block)

    main(*map(from_dlpack, arrays))


def test_extremes_of_two_or_three():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        a, b, c = x[0].ir_value(), x[1].ir_value(), x[2].ir_value()
        y[0] = Float32(nvvm.fmax(a, b))
        y[1] = Float32(nvvm.fmax(a, b, c=c))
        y[2] = Float32(nvvm.fmax(T.f32(), a, b, c=c))
        y[3] = Float32(nvvm.fmin(a, b, c=c))

    y = np.zeros(4, np.float32)
    _run(kernel, np.array([2, 1, 5], np.float32), y, block=1)
    np.testing.assert_array_equal(y, [2, 5, 5, 1])


def test_all_names_of_the_dialect_can_be_had():
    names: dict = {}
    exec("from cutlass._mlir.dialects.nvvm import *", names)
    assert names["fmax"] is nvvm.fmax
    assert names["ThreadIdXOp"] is nvvm.ThreadIdXOp
    with pytest.raises(AttributeError):
        nvvm.no_such_operation  # noqa: B018


def test_atomic_operations_by_kind():
    @cute.kernel
    def kernel(f: cute.Tensor, n: cute.Tensor, old: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        kinds = nvvm.AtomicOpKind
        nvvm.atomicrmw(op=kinds.FADD, ptr=f.iterator.llvm_ptr, a=Float32(0.5).ir_value())
        nvvm.atomicrmw(T.i32(), kinds.ADD, n.iterator.llvm_ptr, t.ir_value())
        nvvm.atomicrmw(op=kinds.MAX, ptr=(n.iterator + 1).llvm_ptr, a=t)
        nvvm.atomicrmw(op=kinds.UMIN, ptr=(n.iterator + 2).llvm_ptr, a=t.ir_value())
        nvvm.atomicrmw(op=kinds.OR, ptr=n.iterator + 3, a=Int32(1) << t)
        if t == 0:
            was = nvvm.atomicrmw(op=kinds.CAS, ptr=(n.iterator + 4).llvm_ptr, a=Int32(9), b=Int32(7))
            old[0] = Int32(was)
            nvvm.atomicrmw(op=kinds.EXCH, ptr=(n.iterator + 5).llvm_ptr, a=Int32(3))
        cute.arch.atomic_add((n.iterator + 6).llvm_ptr, Uint32(2))

    f, n, old = np.zeros(1, np.float32), np.array([0, 0, -1, 0, 7, 1, 0], np.int32), np.zeros(1, np.int32)
    _run(kernel, f, n, old)
    assert f[0] == 2.0
    np.testing.assert_array_equal(n, [6, 3, 0, 15, 9, 3, 8])
    assert old[0] == 7


def test_waits_with_a_limit():
    """As programs build them: of raw values, until the phase is complete."""

    @cute.kernel
    def kernel(y: cute.Tensor):
        barrier = cute.arch.alloc_smem(Int64, 1)
        thread = cute.arch.thread_idx()[0]
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.sync_threads()
        limit = Int32(1000).ir_value()
        early = cutlass.Boolean(nvvm.mbarrier_try_wait_parity_timelimit(barrier.llvm_ptr, Int32(0).ir_value(), limit))
        cute.arch.sync_threads()
        if thread == 32:
            y[32] = Int32(7)
            cute.arch.mbarrier_arrive(barrier)
        done = cutlass.Boolean(False)
        while not done:
            done = cutlass.Boolean(nvvm.mbarrier_try_wait_parity_timelimit(barrier.llvm_ptr, 0, limit))
        if thread < 32:
            y[thread] = y[32] + Int32(early)

    y = np.zeros(33, np.int32)
    _run(kernel, y, block=64)
    assert (y == 7).all()

    @cute.jit
    def main(y: cute.Tensor):
        kernel(y).launch(grid=1, block=64)

    for arch, found in (("sm_90a", "try_wait"), ("sm_80", "test_wait")):
        ptx = cute.compile(main, from_dlpack(y), target="nvidia", options=f"--gpu-arch {arch}").__ptx__
        lines = [line for line in ptx.splitlines() if f"mbarrier.{found}.parity.shared.b64" in line]
        assert len(lines) >= 2
        operands = 4 if arch == "sm_90a" else 3
        assert all(len(line.split(f"{found}.parity")[1].split(";")[0].split(",")) == operands for line in lines)


def test_pointers_of_values():
    @cute.kernel
    def kernel(x: cute.Tensor):
        raw = cutlass.Pointer(x.iterator.llvm_ptr, dtype=Float32)
        assert isinstance(raw, cutlass.Pointer)
        assert raw.memspace is x.iterator.memspace
        (raw + 1).store(raw.load() + 4.0)
        bits = cutlass.Pointer(raw, dtype=Int32)
        cute.make_tensor(raw, cute.make_layout(4))[2] = Float32(bits.load())

    x = np.array([1.0, 0, 0, 0], np.float32)
    _run(kernel, x, block=1)
    np.testing.assert_array_equal(x[:3], [1, 5, np.float32(0x3F800000)])


def test_work_tiles_are_carried_through_loops():
    @cute.kernel
    def kernel(y: cute.Tensor):
        tile = cutlass.utils.WorkTileInfo((Int32(0), Int32(1)), Int32(0) < cute.size(y))
        while tile.is_valid_tile:
            y[tile.tile_idx[0]] = tile.tile_idx[1]
            after = tile.tile_idx[0] + 1
            tile = cutlass.utils.WorkTileInfo((after, tile.tile_idx[1] * 2), after < cute.size(y))

    y = np.zeros(5, np.int32)
    _run(kernel, y, block=1)
    np.testing.assert_array_equal(y, [1, 2, 4, 8, 16])


def test_one_of_two_values():
    @cute.jit
    def chosen(x: Int32):
        return kiln.select_(x > 3, x, -1)

    assert [chosen(x) for x in (2, 5)] == [-1, 5]


def test_a_library_may_filter_warnings_of_the_language(monkeypatch):
    from cutlass.base_dsl.dsl import BaseDSL  # pyright: ignore[reportMissingImports]

    language, original = cutlass.cutlass_dsl.CuTeDSL._get_dsl(), BaseDSL.print_warning
    monkeypatch.setattr(BaseDSL, "print_warning", lambda self, message: message == "known" or original(self, message))
    with pytest.warns(kiln.DSLWarning, match="^other$") as seen:
        for message in ("known", "other", "other"):
            language.print_warning_once(message)
    assert len(seen) == 1


def test_types_come_with_their_names():
    import typing

    from cutlass._mlir.dialects.cute import AddressSpace  # pyright: ignore[reportMissingImports]
    from cutlass.cute.typing import Optional, Type, Union  # pyright: ignore[reportMissingImports]

    assert AddressSpace is cute.AddressSpace
    assert (Optional, Type, Union) == (typing.Optional, typing.Type, typing.Union)  # noqa: UP006


def test_names_of_other_packages_are_those_of_the_language():
    from cutlass.base_dsl import AddressSpace, Arch, KeepPTX, inttoptr  # pyright: ignore[reportMissingImports]
    from cutlass.cute.typing import Array, SymInt, is_integer  # pyright: ignore[reportMissingImports]

    assert (AddressSpace, Arch, KeepPTX, inttoptr) == (cute.AddressSpace, kiln.Arch, cute.KeepPTX, kiln.inttoptr)
    assert cutlass.base_dsl.typing.Pointer is kiln.Pointer
    assert (Array, SymInt, is_integer) == (kiln.Array, cute.SymInt, kiln.is_integer)
    assert (
        cute.max is cute.math.max and cute.rcp is cute.math.rcp and cute.FastDivmodDivisorV2 is cute.FastDivmodDivisor
    )
    assert (cute.pretty_str((1, (2, 3))), kiln.ComposedLayout) == ("(1,(2,3))", cute.ComposedLayout)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cutlass.base_dsl.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(kiln.DSLNotImplemented, match="no values of types of the IR"):
        cute.core.IntValue(1)  # pyright: ignore[reportAttributeAccessIssue]


def test_attributes_of_parameters_and_dynamic_values():
    from cutlass.base_dsl import extract_mlir_attributes, is_dynamic_expression  # pyright: ignore[reportMissingImports]

    class Pair:
        def __init__(self, values):
            self.values = values

        def __extract_mlir_values__(self):
            return self.values

        def __extract_mlir_attributes__(self):
            return ["mine"] * len(self.values)

    @cute.jit
    def main(n: Int32, x: cute.Tensor):
        values = [n.ir_value(), n.ir_value()]
        assert extract_mlir_attributes(Pair(values)) == ["mine", "mine"]
        assert [len(attributes) for attributes in extract_mlir_attributes((n, 3, n))] == [0, 0]
        assert [is_dynamic_expression(v) for v in (n, (1, n), x, 3, (1, 2), "n")] == [True] * 3 + [False] * 3

    main(3, from_dlpack(np.zeros(4, np.float32)))


def test_an_adapter_registered_through_the_registry():
    class Handle:
        def __init__(self, number):
            self.number = number

    @kiln.JitArgAdapterRegistry.register_jit_arg_adapter(Handle)
    class Adapter:
        def __init__(self, handle):
            self.value = Int32(handle.number)

        def __c_pointers__(self):
            return self.value.__c_pointers__()

        def __get_mlir_types__(self):
            return self.value.__get_mlir_types__()

        def __new_from_mlir_values__(self, values):
            return Int32(values[0])

    @cute.jit
    def doubled(handle: Int32) -> Int32:
        return handle * 2

    assert kiln.JitArgAdapterRegistry.get_registered_adapter(Handle) is Adapter
    assert kiln.JitArgAdapterRegistry.get_registered_adapter(type("Other", (), {})) is None
    assert doubled(Handle(21)) == 42


def test_offsets_of_a_structure():
    @cute.struct
    class Storage:
        flag: Int32
        wide: cute.struct.Align[cute.struct.MemRange[Float32, 4], 16]
        last: Int64

    assert Storage._offsets == {"flag": 0, "wide": 16, "last": 32}


def test_a_loop_that_runs_at_least_once():
    @cute.jit
    def count(n: Int32):
        total = Int32(0)
        for i in cutlass.range(n, unroll=1, at_least_once=True):
            total += i + 1
        return total

    assert [count(n) for n in (1, 4)] == [1, 10]


def test_parameters_have_the_names_of_the_interface():
    import cutlass.cutlass_dsl as language  # pyright: ignore[reportMissingImports]
    from cutlass.cute.nvgpu.cpasync import TmaInfo  # pyright: ignore[reportMissingImports]

    @cute.jit(preprocess=False)
    def main(n: Int32):
        assert type(kiln.as_numeric(obj=n)) is Int32
        both = language.all_(iterable=(n > 0, n < 9))
        either = language.any_(iterable=(both, language.not_(lhs=both)))
        power = cute.math.pow(base=Float32(n), exponent=2.0)
        signed = cute.math.copysign(mag=power, sign=-1.0)
        finite = cute.math.isfinite(signed, fastmath=False)
        chosen = cutlass.if_generate(
            cond=either, then_body=lambda x: x, else_body=lambda x: x + 1, input_args=[n], return_types=[Int32]
        )
        return chosen, signed, finite

    assert main(3) == (3, -9.0, True)
    assert cute.get_leaves(value=(1, (2, 3))) == (1, 2, 3) and cute.is_integer(a=3)
    assert cute.basis_get(basis=cute.E(1), t=(4, 5)) == 5
    assert str(cute.make_layout_like(input=cute.make_layout((2, 3), stride=(3, 1)))) == "(2,3):(3,1)"
    assert TmaInfo(copy_atom="atom", tma_tensor="tensor").atom == "atom"


def test_errors_that_programs_raise_say_where():
    reason = ValueError("reason")
    error = kiln.DSLRuntimeError(
        "wrong", filename=__file__, line=3, context="while testing", suggestion="do it right", cause=reason
    )
    text = error.text()
    assert "test_program_names.py:3: error: wrong\nwhile testing" in text and "help: do it right" in text
    assert "from __future__ import annotations" in text and error.__cause__ is reason
    assert "x = y" in kiln.DSLUserCodeError("wrong", snippet="x = y").text()


def test_a_type_is_registered_by_its_name():
    kind = type("Handle", (), {})
    adapter = object()
    assert cute.register_jit_arg_adapter(python_type=kind)(adapter) is adapter
    registry = kiln.JitArgAdapterRegistry
    assert registry.get_registered_adapter(kind) is adapter
    scoped = registry.register_jit_arg_adapter(kind, scope="cuda")(object())
    assert cute.register_jit_arg_adapter(kind)(adapter) is adapter and registry.get_registered_adapter(kind) is scoped

    text = f"{__name__}.Elsewhere"
    lazy = cute.register_jit_arg_adapter(text, lazy=True)(object())
    elsewhere = type("Elsewhere", (), {"__module__": __name__})
    assert registry.get_registered_adapter(type("Derived", (elsewhere,), {})) is lazy
    for kinds, options, rule in [
        (text, {}, "takes a type, got"), (kind, {"lazy": True}, "name of a type"), (kind, {"scope": 1}, "scope is 1")
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=rule):
            cute.register_jit_arg_adapter(kinds, **options)


def test_numbers_by_keyword():
    @cute.jit
    def main(x: Int32) -> Int32:
        return Int32(x=x) + Int32(cute.Boolean(a=x)) + cute.Int32(cute.Float32(x=3))

    assert main(4) == 8 and cute.Boolean(a=2) and kiln.Numeric(value=2).dtype is Int32


def test_a_packed_operation_is_chosen_by_its_function():
    import functools

    subtract = functools.partial(cute.arch.calc_packed_f32x2_op, src_c=None, calc_func=nvvm.sub_packed_f32x2)
    multiply_add = functools.partial(cute.arch.calc_packed_f32x2_op, calc_func=nvvm.fma_packed_f32x2)

    @cute.kernel
    def kernel(x: cute.Tensor):
        pair, other = (x[0], x[1]), (x[2], x[3])
        x[4], x[5] = subtract(pair, other)
        x[6], x[7] = multiply_add(pair, other, src_c=pair)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    x = np.array([1, 2, 3, 5, 0, 0, 0, 0], np.float32)
    main(from_dlpack(x))
    assert x[4:].tolist() == [-2, -3, 4, 12]


def test_internals_of_another_implementation_say_what_they_are():
    from cutlass.experimental.task_scheduling.pipeline import TSPipelineAsyncUmma  # pyright: ignore

    derived = type("Mine", (TSPipelineAsyncUmma,), {})
    with pytest.raises(kiln.DSLNotImplemented, match="internal of another implementation"):
        derived()
    cute.core.IntValue.patched = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(kiln.DSLNotImplemented, match="no values of types of the IR"):
        cute.core.IntValue(3)  # pyright: ignore[reportAttributeAccessIssue]
