"""Bare arrays: code is specialised for 16-byte alignment and divisible extents, in at most four variants."""

# pyright: reportUndefinedVariable=false, reportInvalidTypeForm=false
from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from native_calls_testing import strays, wait_for_compilers
from tensor_testing import aligned

import kiln
from kiln import cute
from kiln.base_dsl import target
from kiln.base_dsl.options import CompileOptions
from kiln.cute.runtime import from_dlpack, make_fake_compact_tensor
from kiln.hardware.current import compiling_with

PLAIN = "align 2 (?,?):(?{i64},1)"
ALIGNED = "align 16 (?,?):(?{i64},1)"
ALIGNED_ROWS = "align 16 (?,?):(?{i64 div=8},1)"
WHOLE_VECTORS = "align 16 (?,?{div=8}):(?{i64 div=8},1)"


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(target, "_process_choice", "cpu")  # native code takes no calls in a block of kiln.target


def halves(*shape):
    made = aligned(shape, np.float16)
    made[...] = np.random.default_rng(0).normal(size=shape)
    return made


def views(rows=6):
    """A matrix of each level, with what a function sees of it."""
    base, odd = halves(rows, 64), halves(rows, 63)
    return {WHOLE_VECTORS: base[:, 8:], ALIGNED_ROWS: base[:, :30], ALIGNED: odd, PLAIN: base[:, 1:57]}


@cute.kernel
def double_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    a, b = cute.zipped_divide(x, (1, 8)), cute.zipped_divide(y, (1, 8))
    if thread < cute.size(a, mode=[1]):
        b[None, thread].store((a[None, thread].load() * 2.0).to(y.element_type))


@cute.jit
def launch_double(x: cute.Tensor, y: cute.Tensor):
    double_kernel(x, y).launch(grid=1, block=32)


def doubling():
    """A new function, which is quick to compile: it doubles on the host."""

    @cute.jit
    def double(x: cute.Tensor, y: cute.Tensor):
        rows, columns = x.shape
        for row in range(rows):
            for part in range(columns // 8):
                a, b = cute.local_tile(x, (1, 8), (row, part)), cute.local_tile(y, (1, 8), (row, part))
                b.store((a.load() * 2.0).to(y.element_type))
            for column in range(columns // 8 * 8, columns):
                y[row, column] = (x[row, column] * 2.0).to(y.element_type)

    return double


def known(compiled):
    """What compiled code knows of its arrays."""
    return tuple(f"align {key.alignment} {key.layout}" for key in compiled.keys.values())


def variants(function):
    """What each compiled variant of a function knows of its arrays."""
    return [known(each) for each in function._specializations.codes()]


def check(double, x, y):
    y[...] = 0
    double(x, y)
    assert np.array_equal(y, x * 2), (x.shape, x.strides, x.ctypes.data % 16)


def test_levels_are_seen_and_right():
    double = doubling()
    for sees, x in views().items():
        check(double, x, x.copy())  # numpy aligns a new array
        assert variants(double)[-1][0] == sees
    assert len(variants(double)) == 4
    found = views()
    for x in (found[PLAIN], found[WHOLE_VECTORS], found[ALIGNED], halves(3, 24)):
        check(double, x, x.copy())
    assert len(variants(double)) == 4


@pytest.mark.parametrize("swapped", [False, True])
def test_four_variants_at_most(swapped):
    """Whatever is passed, in whatever order, results are right, and a fitting variant is used."""
    double = doubling()
    pairs = [(x, y) for x in views().values() for y in views().values()]
    for x, y in reversed(pairs) if swapped else pairs:
        columns = min(x.shape[1], y.shape[1])
        check(double, x[:, :columns], y[:, :columns])
    assert len(variants(double)) == 4
    double.retrace()
    check(double, *pairs[0])
    assert len(variants(double)) == 1


def test_a_stronger_array_after_a_weaker_one_gets_its_own_code():
    double = doubling()
    found = views()
    for sees in (PLAIN, ALIGNED, WHOLE_VECTORS):
        assert strays(double, found[sees], found[sees].copy()) == 0
        assert variants(double)[-1][0] == sees
    assert len(variants(double)) == 3
    wait_for_compilers()
    for sees in (WHOLE_VECTORS, PLAIN):
        assert strays(double, found[sees], found[sees].copy()) == 0


def test_native_code_takes_arrays_beyond_the_fourth_variant():
    double = doubling()
    found, y = views(), halves(6, 80)
    weak = y[:, 1:]
    for sees in (WHOLE_VECTORS, ALIGNED_ROWS, ALIGNED):
        check(double, found[sees], y[:, : found[sees].shape[1]])
    for x in (found[PLAIN], found[WHOLE_VECTORS], found[ALIGNED]):  # with another y: variant four, which fits all
        assert strays(double, x, weak[:, : x.shape[1]]) == 0
        check(double, x, weak[:, : x.shape[1]])
    assert variants(double)[3:] == [(PLAIN, PLAIN)]
    x = found[WHOLE_VECTORS]
    assert strays(double, x, y[:, : x.shape[1]]) == 0
    check(double, x, y[:, : x.shape[1]])
    assert len(variants(double)) == 4


def test_threads_share_the_bound():
    double = doubling()
    pairs = [(x, y) for x in views().values() for y in views().values()]
    failures = []

    def run(mine):
        try:
            for x, y in mine:
                columns = min(x.shape[1], y.shape[1])
                check(double, x[:, :columns], y[:, :columns].copy() if y is x else y[:, :columns])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=([(x, y.copy()) for x, y in pairs[n::2]],)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(variants(double))) == 4


def test_elements_of_other_widths_and_modes(capsys):
    @cute.jit
    def show(x):
        print(x)

    def seen(x):
        show(x, no_cache=True)
        return capsys.readouterr().out.strip()

    wide, bytes_ = aligned((4, 6), np.float64), aligned((4, 32), np.int8)
    assert seen(wide) == "tensor<ptr<f64, generic, align<16>> o (?,?{div=2}):(?{i64 div=2},1)>"
    assert seen(bytes_) == "tensor<ptr<i8, generic, align<16>> o (?,?{div=16}):(?{i64 div=16},1)>"
    assert seen(bytes_.T) == "tensor<ptr<i8, generic, align<16>> o (?{div=16},?):(1,?{i64 div=16})>"
    assert seen(bytes_[:, ::2]) == "tensor<ptr<i8, generic> o (?,?):(?{i64},?{i64})>"  # no mode is contiguous
    assert seen(bytes_[0]) == "tensor<ptr<i8, generic, align<16>> o (?{div=16}):(1)>"
    assert seen([bytes_[0, :5], bytes_[0, 1:]]) == (
        "[tensor<ptr<i8, generic, align<16>> o (?):(1)>, tensor<ptr<i8, generic> o (?):(1)>]"
    )


def test_stale_code_is_looked_for_in_the_variant_that_runs(monkeypatch):
    double = doubling()
    pairs = [(x, y) for x in views().values() for y in views().values()]
    monkeypatch.setenv("KILN_CHECK_STALE", "1")
    for _ in range(2):
        for x, y in pairs[:6]:
            columns = min(x.shape[1], y.shape[1])
            check(double, x[:, :columns], y[:, :columns])
    assert len(variants(double)) == 4


def test_what_is_said_explicitly_stays_as_it_is():
    double = doubling()
    x = views()[WHOLE_VECTORS]
    y = np.zeros_like(x)
    compiled = cute.compile(double, x, y)  # code for any array
    assert known(compiled) == (PLAIN, PLAIN)
    for other in views().values():
        check(compiled, other, np.zeros_like(other))
    fake = make_fake_compact_tensor(
        cute.Float16, (cute.sym_int(), cute.sym_int()), stride_order=(1, 0), memspace=cute.AddressSpace.generic
    )
    assert known(cute.compile(double, fake, fake)) == (PLAIN, PLAIN)
    double(from_dlpack(x).mark_layout_dynamic(), from_dlpack(y).mark_layout_dynamic())
    assert variants(double) == [(PLAIN, PLAIN)]


def ptx_of(function, *arrays):
    """The PTX of a call with these arrays, which need not be on a GPU."""
    arguments = function.parameters.bind(arrays, {})
    nodes = [node.specialized() for node in function.parameters.nodes(function.dsl, arguments)]
    options = CompileOptions("--gpu-arch sm_90a --keep-ptx")
    with compiling_with(options, "nvidia"):
        return function.compile(nodes, arguments, options, "nvidia").__ptx__


def test_element_wise_code_for_gpus_is_vectorised():
    double = launch_double
    x = halves(4, 64)
    text = ptx_of(double, x, np.zeros_like(x))
    assert re.search(r"ld\.global\S*\.v4\.b32", text) and re.search(r"st\.global\S*\.v4\.b32", text)
    weak = ptx_of(double, halves(4, 65)[:, 1:], halves(4, 65)[:, 1:])
    assert ".v4." not in weak


# --- descriptions ----------------------------------------------------------------------------------------------------


@cute.jit
def scale(x: cute.Tensor["f16[m,n%8]@16"], w: cute.Tensor["f16[n]"]):  # noqa: F821, UP037
    w[0] = x[0, 0] + w[0]


def test_a_description_is_compiled_once_and_checked():
    x, w = halves(4, 64), np.zeros(64, np.float16)
    assert strays(scale, x, w) == 0
    assert strays(scale, halves(6, 80)[:, :64], w[:64]) == 0
    assert strays(scale, from_dlpack(x), w) == 0
    assert variants(scale) == [(WHOLE_VECTORS, "align 2 (?{div=8}):(1)")]
    compiled = cute.compile(scale, x, w)
    assert strays(compiled, x, w) == 0
    takes = r"argument 'x' of scale takes Tensor\[\"f16\[m,n%8\]@16\"\], and "
    for wrong, why in (
        (halves(4, 72)[:, 1:65], "its address 0x[0-9a-f]+ is not a multiple of 16"),
        (x[:, :60], "the extent of mode 1 is 60, not a multiple of 8"),
        (halves(4, 65)[:, :64], "the stride of mode 0 is 65, not a multiple of 8"),
        (x.astype(np.float32), "its elements are Float32"),
        (x[0], "it has 1 mode, not 2"),
        (from_dlpack(x[:, :60]), "the extent of mode 1 is 60, not a multiple of 8"),
        (make_fake_compact_tensor(cute.Float16, (4, 64), stride_order=(1, 0)), "its address is only known to be"),
    ):
        for function in (scale, compiled):
            with pytest.raises(kiln.DSLUserCodeTypeError, match=takes + why):
                function(wrong, w)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="takes Tensor.* and got the int 3"):
        scale(3, w)
    for function in (scale, scale._run_in_python, compiled):
        with pytest.raises(
            kiln.DSLUserCodeValueError, match="mode 0 of argument 'w' is 56, and the extent of mode 1 of"
        ):
            function(x, w[:56])
    assert len(variants(scale)) == 1


def test_descriptions_of_lists_and_kernels(capsys):
    @cute.kernel
    def kernel(x: cute.Tensor["f16[n%8]@16"]):  # noqa: F821, UP037
        print(x)

    @cute.jit
    def launch(x):
        kernel(x).launch(grid=1, block=1)

    @cute.jit
    def several(xs: list[cute.Tensor["f16[n%8]"]]):  # noqa: F821, UP037
        print(xs)

    x = halves(64)
    launch(x)
    assert capsys.readouterr().out == "tensor<ptr<f16, generic, align<16>> o (?{div=8}):(1)>\n"
    with pytest.raises(kiln.DSLUserCodeTypeError, match="only known to be a multiple of 2, not of 16"):
        launch(x[1:57])
    several([x[:56], x[1:57]])
    same = "tensor<ptr<f16, generic> o (?{div=8}):(1)>"
    assert capsys.readouterr().out == f"[{same}, {same}]\n"
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"argument 'xs\[1\]' takes .*the extent of mode 0 is 60"):
        several([x, x[:60]])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f16", "this does not describe a tensor"),
        ("f17[m]", "this does not describe a tensor"),
        ("f16[m-1]", "'m-1' is not an extent"),
        ("f16[m n]", "a name or a number is one word"),
        ("f16[m]@3", "an alignment is a power of two, 2 or more for f16, and not 3"),
        ("f16[m%4,m%8]", "m is a multiple of 8 here, and of 4 where it was named first"),
    ],
)
def test_wrong_descriptions(text, why):
    with pytest.raises(kiln.DSLUserCodeTypeError, match=re.escape(f'Tensor["{text}"]: {why}')):
        cute.Tensor[text]

    def function(x):
        pass

    function.__annotations__["x"] = f'cute.Tensor["{text}"]'
    with pytest.raises(kiln.DSLUserCodeTypeError, match=rf"{__name__}\.py:\d+: error: .*{re.escape(why)}"):
        cute.jit(function)(halves(8))


def test_names_of_types_are_left_to_type_checkers():
    assert cute.Tensor["Float16"] is cute.Tensor[cute.Float16] is cute.Tensor
    assert cute.Tensor["cute.Float16"] is cute.Tensor
