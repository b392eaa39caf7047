"""Expressions that Python or Kiln refuses for traced values: the error names the line and says what to write."""

from __future__ import annotations

import operator
import re
import traceback
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kiln
from kiln.cute.runtime import from_dlpack

PACKAGE = str(Path(kiln.__file__ or "").parent)
HEAD = """\
import numpy as np
import kiln
from kiln import Constexpr, Float16, Float32, Int32, cute, pipeline
TABLE = np.arange(32.0)
TAKEN = cute.arch.thread_idx
class Own:
    def __init__(self, x): self.x = x
    def __bool__(self): return self.x > 0
    def __index__(self): return self.x
    def __float__(self): return self.x.to(Float32)
def tested(x): return 1 if x else 2
@cute.kernel
def k(x: cute.Tensor, n: Int32):
    i, _, _ = cute.arch.thread_idx()
    {line}
@cute.jit
def main(x: cute.Tensor, n: Int32):
    k(x, n).launch(grid=1, block=32)
"""

CASES = [
    ("x + x", "`+` takes numbers, not tensors", "x.load() + y.load()"),
    ("y = -x", "`-` takes numbers, not tensors", "x[i] - y[i]"),
    ("x < 3.0", "`<` takes numbers, not tensors", "x[i] < y[i]"),
    ("x == x[0, None]", "`==` and `!=` compare numbers", "x[i] == y[i]"),
    ("x != 0.0", "`==` and `!=` compare numbers", "x[i] == y[i]"),
    ("3.0 in x", "`in` does not look into tensors", "x[i] == value"),
    ("len(x)", "a tensor has no len()", "cute.size(x)"),
    ("list(x)", "a tensor cannot be iterated over", "range(cute.size(x))"),
    ("x(i, 0)", "x is a tensor", "x[i, 0]"),
    ("x[i][0] = 1.0", "x[i] is one number", "x[i, 0]"),
    ("x[i][0]", "x[i] is one number", "x[i, 0]"),
    ("a, b = n", "cannot unpack", "one number"),
    ("a, b = cute.arch.thread_idx()", "thread_idx() returns three numbers", "x, _, _ = cute.arch.thread_idx()"),
    ("a, b, c = x.shape", "x has 2 modes", "cute.rank(x)"),
    ("cute.arch.thread_idx().x", "returns three numbers", "x, y, z = cute.arch.thread_idx()"),
    ("TAKEN[0]", "TAKEN is the function thread_idx", "thread_idx()[0]"),
    ("x.load + 1", "unsupported operand", "write its parentheses"),
    ("x.shape()", "'tuple' object is not callable", "leave the parentheses away"),
    ("x.numel()", "there is no .numel", "cute.size(x)"),
    ("x.size(0)", "no methods of numpy", "x.shape[0]"),
    ("x[i, 0].item()", "number of type Float32", "as it is"),
    ("x[i, 0].too(Float16)", "number of type Float32", "did you mean .to?"),
    ("x[i, 0] << 2", "unsupported operand", "no bit operations"),
    ("x[i, 0] + 'a'", "'Float32' and 'str'", "both operands must be numbers"),
    ("None + x[i, 0]", "'NoneType' and 'Float32'", "both operands must be numbers"),
    ("x[i, 0] + 1j", "'Float32' and 'complex'", "the real and the imaginary part"),
    ("n * np.complex64(1j)", "'Int32' and 'complex", "the real and the imaginary part"),
    ("1j ** x[i, 0]", "'complex' and 'Float32'", "the real and the imaginary part"),
    ("x[i, 0] < 1j", "compared with the complex number 1j", "the real and the imaginary part"),
    ("x[i, 0] == 1j", "compared with the complex number 1j", "the real and the imaginary part"),
    ("cute.full((4,), 1.0, Float32) != 1j", "compared with the complex number 1j", "the real and the imaginary part"),
    ("n in [np.complex64(2)]", "compared with the complex number (2+0j)", "the real and the imaginary part"),
    ("not Own(n)", "__bool__() returns a Boolean", "a method with a name of its own"),
    ("y = 1 if Own(n) and n else 2", "__bool__() returns a Boolean", "a method with a name of its own"),
    ("tested(Own(n))", "__bool__() returns a Boolean", "a method with a name of its own"),
    ("any([Own(n)])", "__bool__() returns a Boolean", "a method with a name of its own"),
    ("[1, 2][Own(n)]", "__index__() returns a Int32", "a method with a name of its own"),
    ("float(Own(n))", "__float__() returns a Float32", "a method with a name of its own"),
    ("x[i / 2, 0] = 0.0", "indexed by Float32", "i // 2"),
    ("x[i, 0] = TABLE[i]", "TABLE is an array of numpy", "TABLE: cute.Tensor"),
    ("TABLE[0] = x[i, 0]", "'TABLE' is a global", "write to a tensor"),
    ("threadIdx.x", "threadIdx is not defined", "cute.arch.thread_idx()"),
    ("Int16(3)", "Int16 is not defined", "from kiln import Int16"),
    ("make_layout(3)", "make_layout is not defined", "cute.make_layout"),
    ("sync_threads()", "sync_threads is not defined", "cute.arch.sync_threads"),
    ("cute.copy(x)", "missing 2 required", "cute.copy(atom, src, dst"),
    ("pipeline.PipelineTmaAsync.create(2)", "positional argument", "PipelineTmaAsync.create(*, num_stages"),
    ("cute.make_layout('8')", "a shape must be an int", ""),
    ("cute.recast_tensor(x, np.float16)", "an element type is expected", "Float16"),
    ("pass\n    for j in range(n / 2): pass", "range() takes integers", "//"),
]


def failure_of(source: str, folder: Path, *args: object) -> BaseException:
    """Return the error of a program's `main`."""
    file = folder / "program.py"
    file.write_text(source)
    module = ModuleType("program")
    exec(compile(source, str(file), "exec"), module.__dict__)
    with pytest.raises(Exception) as caught, kiln.target("cpu"):  # noqa: PT011
        module.__dict__["main"](*args)
    return caught.value


@pytest.mark.parametrize(("line", "said", "hint"), CASES, ids=[line for line, *_ in CASES])
def test_expression(line, said, hint, tmp_path):
    failure = failure_of(HEAD.format(line=line), tmp_path, np.zeros((32, 32), np.float32), 3)
    text = str(failure)
    shown = "".join(traceback.format_exception(failure))
    assert said in text
    assert hint in text.partition("help:")[2]
    assert "program.py:" in text.splitlines()[0]
    assert PACKAGE not in shown


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("x.numel()", AttributeError),
        ("threadIdx", NameError),
        ("TABLE[i]", IndexError),
        ("x + x", TypeError),
        ("a, b, c = x.shape", ValueError),
    ],
)
def test_errors_are_of_the_class_that_python_raises(line, kind, tmp_path):
    assert isinstance(failure_of(HEAD.format(line=line), tmp_path, np.zeros((32, 32), np.float32), 3), kind)


def test_wrong_arguments_of_functions_of_kiln_show_no_frames(tmp_path):
    """What fails inside Kiln has a note instead, since it may be Kiln's mistake."""
    source = HEAD.format(line="cute.make_tiled_copy_tv(1, 2, 3)")
    failure = failure_of(source, tmp_path, np.zeros((32, 32), np.float32), 3)
    assert PACKAGE not in "".join(traceback.format_exception(failure))
    assert any("python -X dev" in note for note in failure.__notes__)


def test_failures_outside_of_programs_keep_their_frames(tmp_path, monkeypatch):
    monkeypatch.setattr("kiln.base_dsl.specializations.target_key", None)
    failure = failure_of(HEAD.format(line="pass"), tmp_path, np.zeros((32, 32), np.float32), 3)
    assert PACKAGE in "".join(traceback.format_exception(failure))


@pytest.mark.parametrize("line", ["k(x).run(grid=1, block=32)", "k.launch(grid=1)(x)", "k(x).launch(1, 32)"])
def test_launches(line, tmp_path):
    source = f"""\
from kiln import cute
@cute.kernel
def k(x: cute.Tensor):
    x[0] = 1.0
@cute.jit
def main(x: cute.Tensor):
    {line}
"""
    failure = failure_of(source, tmp_path, np.zeros(3, np.float32))
    assert "launch(grid=" in str(failure)
    assert PACKAGE not in "".join(traceback.format_exception(failure))


def test_a_name_of_another_module():
    with pytest.raises(AttributeError, match=r"it is kiln\.range_constexpr"):
        kiln.cute.range_constexpr  # type: ignore[attr-defined]  # noqa: B018


def test_names_of_cuda_and_ptx():
    arch = kiln.cute.arch
    with pytest.raises(AttributeError, match=r"no attribute 'syncthreads': write sync_threads\("):
        arch.syncthreads  # noqa: B018
    for name, instead in arch._ELSEWHERE.items():
        assert not hasattr(arch, name)
        whole = re.findall(r"cute\.[\w.]+", instead) or [f"cute.arch.{instead.partition('(')[0]}"]
        for written in whole if not instead.startswith("x[i]") else ():
            operator.attrgetter(written)(kiln)


@pytest.mark.parametrize(
    ("option", "instead"),
    [("threads", "block="), ("num_warps", "block=32 * num_warps"), ("blocks", "grid="), ("shared_mem", "smem=")],
)
def test_sizes_of_other_languages(option, instead, tmp_path):
    source = f"""\
from kiln import cute
@cute.kernel
def k(x: cute.Tensor):
    x[0] = 1.0
@cute.jit
def main(x: cute.Tensor):
    k(x).launch(grid=1, {option}=32)
"""
    failure = failure_of(source, tmp_path, np.zeros(3, np.float32))
    assert f"unknown option '{option}'" in str(failure)
    assert instead in str(failure)
    assert "did you mean" not in str(failure)


NESTED = """\
from kiln import cute, Int32
@cute.kernel
def k(x: cute.Tensor, n: Int32):
    for i in range(n):
        if x[i] > 0.0:
            while n > 1:
                {line}
@cute.jit
def main(x: cute.Tensor):
    k(x, 3).launch(grid=1, block=32)
"""


@pytest.mark.parametrize("line", ["x.sum()", "raise ValueError"])
def test_frames_have_the_names_of_the_functions(line, tmp_path):
    """Parts of a function that are traced as functions have its name; of an error of Kiln's only the innermost shows."""
    failure = failure_of(NESTED.format(line=line), tmp_path, np.zeros(3, np.float32))
    shown = traceback.extract_tb(failure.__traceback__)
    assert "__kiln" not in "".join(traceback.format_exception(failure))
    names = [frame.name for frame in shown if frame.filename == str(tmp_path / "program.py")]
    assert set(names) <= {"<module>", "main", "k"}
    if line == "x.sum()":
        assert names.count("k") == 1


@kiln.cute.jit
def add(x: kiln.cute.Tensor, a: kiln.Float32, count: kiln.Int32):
    x[0] = a + count


@kiln.cute.jit
def add_bare(x: kiln.cute.Tensor, a, n):
    x[0] = (a + n).to(kiln.Float32)


@pytest.mark.parametrize("function", [add, add_bare])
@pytest.mark.parametrize("a", [np.float16(2), np.float32(2), np.float64(2)])
@pytest.mark.parametrize("n", [np.uint8(3), np.int32(3), np.int64(3)])
def test_scalars_of_numpy_are_numbers(function, a, n):
    x = np.zeros(2, np.float32)
    with kiln.target("cpu"):
        function(x, a, n)
    assert x[0] == 5


def test_a_scalar_of_numpy_that_its_annotation_excludes():
    with pytest.raises(TypeError, match="takes Int32 and got the float"), kiln.target("cpu"):
        add(np.zeros(2, np.float32), 1.0, np.float32(2.5))


@pytest.mark.parametrize("stream", [3.5, "default"])
def test_a_stream_that_is_none(stream, tmp_path):
    source = (
        HEAD.replace("n: Int32", "stream").replace("k(x, n)", "k(x, 1)").replace("block=32", "block=32, stream=stream")
    )
    failure = failure_of(source.format(line="pass"), tmp_path, np.zeros((32, 32), np.float32), stream)
    assert "stream is " in str(failure)


def test_a_sparse_tensor(tmp_path):
    torch = pytest.importorskip("torch")
    source = HEAD.format(line="pass")
    failure = failure_of(source, tmp_path, torch.eye(32).to_sparse(), 3)
    assert "x.to_dense()" in str(failure)


def test_a_misspelt_argument():
    with pytest.raises(TypeError, match="did you mean count= in place of cuont="), kiln.target("cpu"):
        add(np.zeros(2, np.float32), a=1.0, cuont=3)


def test_tensors_equal_themselves():
    @kiln.cute.jit
    def compare(x: kiln.cute.Tensor):
        assert x == x  # noqa: PLR0124
        assert x != None  # noqa: E711
        assert x in (x, 3)

    with kiln.target("cpu"):
        compare(from_dlpack(np.zeros(2, np.float32)))
