"""Arguments of a program's own C structs, whose fields are raw values of the bindings in the traced function."""

from __future__ import annotations

import textwrap

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_fields_are_numbers(child, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import ctypes
        import torch
        import cutlass
        import cutlass.cute as cute
        from cutlass._mlir import ir
        from cutlass._mlir.dialects import llvm

        class View(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int32 * 2)]

        class ViewValue(ir.Value):
            def pair(self, place):
                i32 = ir.IntegerType.get_signless(32)
                both = llvm.extractvalue(llvm.StructType.get_literal([i32] * 2), self, [place])
                return tuple(llvm.extractvalue(i32, both, [n]) for n in range(2))

            @property
            def data(self):
                return cute.make_ptr(cutlass.Float32, llvm.extractvalue(llvm.PointerType.get(), self, [0]))

        class Argument:
            def __init__(self, view):
                self.view = view

            def __get_mlir_types__(self):
                pair = llvm.StructType.get_literal([ir.IntegerType.get_signless(32)] * 2)
                return [llvm.StructType.get_literal([llvm.PointerType.get(), pair, pair])]

            def __new_from_mlir_values__(self, values):
                return ViewValue(values[0])

            def __c_pointers__(self):
                return [ctypes.addressof(self.view)]

        @cute.jit
        def show(view):
            cute.printf("shape {} stride {}", view.pair(1), view.pair(2))
            cute.printf("rows %d", view.pair(1)[0])
            tensor = cute.make_tensor(view.data, cute.make_layout(view.pair(1), stride=view.pair(2)))
            tensor[1, 2] = tensor[1, 1] + 40.0

        x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        view = View(x.data_ptr(), (2, 3), (3, 1))
        cute.compile(show, Argument(view))(Argument(view))
        print(x.tolist())
        """)
    )
    done = child("-m", "kiln", "run", "--target", "cpu", "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["shape (2,3) stride (3,1)", "rows 2", "[[0.0, 1.0, 2.0], [3.0, 4.0, 44.0]]"]
