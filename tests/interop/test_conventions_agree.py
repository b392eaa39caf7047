"""Every bridge calls the same kernel with the same result, to the bit; bad arguments end in an error, whatever they are."""

import os
import random

import numpy as np
import pytest
from convention_programs import THREADS, Signature, random_signature, spoiled
from jax_testing import with_x64

import kiln.cute as cute
from kiln.cute.runtime import from_dlpack

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
SEEDS = range(60 if LONG else 2)
REFUSED = (TypeError, ValueError, RuntimeError, OverflowError, BufferError)  # the last two are other libraries' own


def result():
    return np.full(THREADS, -1.0, np.float32)


def dynamic(value):
    is_array = isinstance(value, np.ndarray) and value.ndim
    return from_dlpack(value).mark_layout_dynamic(leading_dim=value.ndim - 1) if is_array else value


def through_python(program, signature, given):
    compiled, out = (
        cute.compile(program.plain, *map(dynamic, given), from_dlpack(result()).mark_layout_dynamic()),
        result(),
    )

    def call(*arguments):
        out[:] = -1
        compiled(*arguments, out)
        return out

    return call


def through_tvm_ffi(program, signature, given):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    fakes = (*map(dynamic, given), from_dlpack(result()).mark_layout_dynamic())
    compiled, out = cute.compile(program.plain, *fakes, options="--enable-tvm-ffi"), result()
    tvm_ffi.register_global_func("kiln.agree", compiled, override=True)
    function = tvm_ffi.get_global_func("kiln.agree")

    def call(*arguments):
        out[:] = -1
        function(*arguments, out)
        return out

    return call


def through_torch(program, signature, given):
    torch = pytest.importorskip("torch")
    import kiln.torch as kt

    operator = kt.op(f"kiln_agree::{program.__name__}", program.plain, outputs={"out": (THREADS, torch.float32)})

    def call(*arguments):
        tensors = [torch.from_numpy(x) if isinstance(x, np.ndarray) and x.flags.writeable else x for x in arguments]
        return operator(*tensors).numpy()

    return call


def through_jax(program, signature, given):
    jax = pytest.importorskip("jax")
    import kiln.jax as kj

    places, shape = signature.tensors, jax.ShapeDtypeStruct((THREADS,), np.float32)

    def call(*arguments):
        numbers = {f"p{place}": x for place, x in enumerate(arguments) if place not in places}
        with with_x64():
            arrays = [jax.numpy.asarray(arguments[place]) for place in places]
            made = jax.jit(kj.cutlass_call(program.for_jax, output_shape_dtype=shape, **numbers))(*arrays)
        return np.asarray(made)

    return call


ENTRY_POINTS = {"python": through_python, "tvm_ffi": through_tvm_ffi, "torch": through_torch, "jax": through_jax}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_entry_points_agree(seed, tmp_path):
    chosen = random.Random(seed)
    signature = random_signature(chosen)
    program = signature.load(tmp_path, f"agree_{seed}")
    calls = [signature.arguments(chosen) for _ in range(3)]
    wanted = {}
    for name, convention in ENTRY_POINTS.items():
        try:
            call = convention(program, signature, calls[0])
        except pytest.skip.Exception:
            continue
        for number, arguments in enumerate(calls):
            found = np.array(call(*arguments)).tobytes()
            assert found == wanted.setdefault(number, found), f"{name} differs for {signature}"
    assert len(set(wanted.values())) == 3


@pytest.mark.parametrize("convention", ["python", "tvm_ffi", "torch"])
def test_bad_arguments_are_refused(convention, tmp_path):
    signature = Signature((("float32", (4, 5)), "Int32", ("int8", (7,)), "Float32", "Boolean"))
    program = signature.load(tmp_path, f"spoiled_{convention}")
    chosen = random.Random(7)
    good = signature.arguments(chosen)
    call = ENTRY_POINTS[convention](program, signature, good)
    wanted = call(*good).tobytes()
    refused = 0
    calls = 5000 if LONG else 15 if convention == "tvm_ffi" else 60  # TVM-FFI takes a tenth of a second to raise
    for _ in range(calls):
        try:
            call(*spoiled(good, chosen))
        except REFUSED as failure:
            refused += 1
            assert str(failure)
    assert refused > calls // 3
    assert call(*good).tobytes() == wanted
