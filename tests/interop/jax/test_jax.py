"""Kernels as functions of JAX's arrays, on the CPU target."""

import concurrent.futures
import importlib
import os
import subprocess
import sys

import jax_testing
import numpy as np
import pytest
from jax_testing import with_x64

import kiln.cute as cute
from kiln import Constexpr, Float32, Int32

LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
kj = pytest.importorskip("kiln.jax")


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread < x.shape[1]:
        y[block, thread] = (x[block, thread] * by).to(y.element_type)


@cute.jit
def scale(stream, x: cute.Tensor, y: cute.Tensor, *, by: Float32 = 2.0):
    scaled(x, y, by).launch(grid=x.shape[0], block=32, stream=stream)


def matrix(rows=3, columns=4, dtype=jnp.float32):
    return jnp.arange(rows * columns, dtype=dtype).reshape(rows, columns)


def scaling(x, by, **options):
    return kj.cutlass_call(scale, output_shape_dtype=x, by=by, **options)(x)


def test_a_call_under_jit_and_outside():
    x = matrix()
    assert np.array_equal(scaling(x, 2.0), 2 * x)
    assert np.array_equal(jax.jit(lambda x: scaling(x + 1, 3.0) + 1)(x), 3 * (x + 1) + 1)


def test_one_kernel_serves_all_shapes_and_numbers():
    from kiln.interop.jax import handler

    f = jax.jit(scaling, static_argnums=1)
    f(matrix(), 2.0)
    before = len(handler._calls_by_key)
    for shape in ((1, 1), (5, 7), (2, 31)):
        assert np.array_equal(f(matrix(*shape), 4.0), 4 * matrix(*shape))
    assert len(handler._calls_by_key) == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float8_e4m3fn", "bool"])
def test_types_of_elements(dtype):
    x = matrix(1, 4).astype(dtype)
    assert np.array_equal(scaling(x, 2.0).astype(jnp.float32), x.astype(jnp.float32) * (1 if dtype == "bool" else 2))


def test_float64_is_what_jax_makes_of_it():
    wide = np.arange(12.0).reshape(3, 4)  # with x64 off, JAX passes and gives float32
    assert scaling(wide, 2.0).dtype == jnp.float32
    with with_x64():
        assert scaling(jnp.asarray(wide), 2.0).dtype == jnp.float64
        assert np.array_equal(scaling(jnp.asarray(wide), 2.0), 2 * wide)


def test_arrays_without_elements_launch_nothing():
    assert scaling(jnp.zeros((0, 4)), 2.0).shape == (0, 4)


def test_lists_outputs_in_trees_and_what_is_compiled_in():
    @cute.kernel
    def added(xs: list, y: cute.Tensor, z: cute.Tensor, times: Constexpr):
        i, _, _ = cute.arch.thread_idx()
        y[i] = xs[0][i] + xs[1][i]
        z[i] = y[i] * times

    @cute.jit
    def launch(stream, xs: list, y: cute.Tensor, z: cute.Tensor, *, times: Constexpr):
        added(xs, y, z, times).launch(grid=1, block=8, stream=stream)

    call = kj.cutlass_call(
        launch,
        output_shape_dtype=(jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.float32)),
        times=3,
    )
    a = jnp.arange(8.0)
    y, z = jax.jit(call)([a, a + 1])
    assert np.array_equal(y, 2 * a + 1) and np.array_equal(z, 3 * (2 * a + 1))


def seen_layouts(capfd, *arrays, **options):
    @cute.jit
    def look(stream, x: cute.Tensor, y: cute.Tensor):
        cute.printf("{} {}", x.layout, y.layout)

    out = jax.jit(lambda x: kj.cutlass_call(look, output_shape_dtype=x, **options)(x))(*arrays)
    out.block_until_ready()
    return capfd.readouterr().out.split()


def test_modes_and_layouts(capfd):
    x = jnp.zeros((2, 3, 5))
    assert seen_layouts(capfd, x) == ["(2,3,5):(15,5,1)"] * 2
    spec = kj.TensorSpec(mode=(2, 0, 1))
    assert seen_layouts(capfd, x, input_spec=(spec,)) == ["(5,2,3):(1,15,5)", "(2,3,5):(15,5,1)"]
    assert seen_layouts(capfd, x, input_mode=((2, 0, 1),)) == ["(5,2,3):(1,15,5)", "(2,3,5):(15,5,1)"]
    spec = kj.TensorSpec(layout=(2, 1, 0), static=True)
    assert seen_layouts(capfd, x, input_spec=spec, output_spec=spec) == ["(2,3,5):(1,2,6)"] * 2


def test_outputs_in_place_of_inputs():
    @cute.jit
    def double(stream, x: cute.Tensor):
        scaled(x, x, 2.0).launch(grid=x.shape[0], block=32, stream=stream)

    def call(x):
        return kj.cutlass_call(double, output_shape_dtype=x, input_output_aliases={0: 0})(x)

    x = matrix()
    assert np.array_equal(jax.jit(call)(x), 2 * x)
    assert np.array_equal(x, matrix())  # not donated, so XLA made a copy
    assert np.array_equal(jax.jit(call, donate_argnums=0)(x + 0), 2 * x)


def test_vmap_makes_a_call_for_each_element_or_one_for_all():
    x = jnp.stack([matrix(), matrix() + 1])
    assert np.array_equal(jax.vmap(lambda x: scaling(x, 3.0))(x), 3 * x)
    assert np.array_equal(jax.vmap(jax.vmap(lambda x: scaling(x, 3.0)))(x[None]), 3 * x[None])

    @cute.kernel
    def along(x: cute.Tensor, y: cute.Tensor):
        i, _, _ = cute.arch.thread_idx()
        flat = cute.make_tensor(x.iterator, cute.make_layout((cute.size(x),)))
        out = cute.make_tensor(y.iterator, cute.make_layout((cute.size(y),)))
        if i < cute.size(x):
            out[i] = flat[i] + 1.0

    launches = []

    @cute.jit
    def launch(stream, x: cute.Tensor, y: cute.Tensor):
        launches.append(len(x.shape))
        along(x, y).launch(grid=1, block=64, stream=stream)

    call = lambda x: kj.cutlass_call(launch, output_shape_dtype=x, vmap_method="broadcast_all")(x)
    assert np.array_equal(jax.jit(jax.vmap(call, in_axes=1, out_axes=1))(x), x + 1)
    assert launches == [3]


def test_a_gradient_is_given_by_hand():
    with pytest.raises(TypeError, match=r"test_jax.py:\d+: error: scale has no derivative"):
        jax.grad(lambda x: scaling(x, 2.0).sum())(matrix())
    f = kj.differentiable(lambda x: (scaling(x, 2.0), ()), lambda _, g: (scaling(g, 2.0),))
    assert np.array_equal(jax.jit(jax.grad(lambda x: (f(x) * 3).sum()))(matrix()), jnp.full((3, 4), 6.0))


def test_loops_recomputation_and_threads():
    step = jax.jit(lambda x: jax.lax.scan(lambda c, _: (scaling(c, 2.0), None), x, None, length=5)[0])
    assert np.array_equal(step(matrix()), 32 * matrix())
    until = lambda x: jax.lax.while_loop(lambda c: c[0, 1] < 9, lambda c: scaling(c, 2.0), x)
    assert np.array_equal(jax.jit(until)(matrix()), 16 * matrix())
    f = kj.differentiable(lambda x: (scaling(x, 2.0), ()), lambda _, g: (scaling(g, 2.0),))
    again = jax.grad(lambda x: jax.checkpoint(lambda x: f(jnp.sin(f(x))))(x).sum())(matrix())
    assert np.allclose(again, 4 * jnp.cos(2 * matrix()))
    calls = [jax.jit(lambda x, by=by: scaling(x, by)) for by in range(1, 9)]  # each is lowered in its thread
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for by, found in enumerate(threads.map(lambda f: f(matrix()), calls), 1):
            assert np.array_equal(found, by * matrix())


def test_a_failing_launch_is_jax_error():
    @cute.jit
    def none(stream, x: cute.Tensor, y: cute.Tensor, *, blocks: Int32):
        scaled(x, y, 1.0).launch(grid=blocks, block=32, stream=stream)

    call = lambda x: kj.cutlass_call(none, output_shape_dtype=x, blocks=0)(x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="grid x is 0"):
        jax.jit(call)(matrix()).block_until_ready()


BAD = {
    "no order": (lambda x: kj.TensorSpec(mode=(0, 0)), "not an order of 2 axes"),
    "alignment": (lambda x: kj.TensorSpec(ptr_assumed_align=24), "not a power of two"),
    "rank": (
        lambda x: scaling(x, 2.0, input_spec=(kj.TensorSpec(mode=(0, 1, 2)),)),
        "has 3 entries, and input 0 has 2 axes",
    ),
    "tree": (lambda x: scaling(x, 2.0, input_spec=(None, None, None)), "for arrays in the tree"),
    "both": (lambda x: scaling(x, 2.0, input_spec=kj.TensorSpec(), input_mode=((0, 1),)), "both input_spec and modes"),
    "divisibility": (
        lambda x: scaling(x, 2.0, input_spec=kj.TensorSpec(divisibility=(None, 3))),
        "extent 4, which is no multiple of 3",
    ),
    "alias": (lambda x: scaling(x, 2.0, input_output_aliases={0: 3}), "has 1 inputs and 1 outputs"),
    "alias of another type": (
        lambda x: kj.cutlass_call(
            scale, output_shape_dtype=jax.ShapeDtypeStruct((3, 4), jnp.int32), input_output_aliases={0: 0}
        )(x),
        "which is to be the same",
    ),
    "vmap": (lambda x: scaling(x, 2.0, vmap_method="sideways"), "vmap_method='sideways'"),
    "no output": (lambda x: kj.cutlass_call(scale, by=2.0)(x), "calls that give nothing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name):
    act, text = BAD[name]
    with pytest.raises(ValueError, match=text):
        act(matrix())


def test_a_tracer_cannot_be_compiled_in():
    @cute.jit
    def scale_by(stream, x: cute.Tensor, y: cute.Tensor, *, by: Constexpr[float]):
        scaled(x, y, by).launch(grid=x.shape[0], block=32, stream=stream)

    with pytest.raises(TypeError, match=r"(?s)tracer of JAX as by=.*static_argnames='by'"):
        jax.jit(lambda x, by: kj.cutlass_call(scale_by, output_shape_dtype=x, by=by)(x))(matrix(), 2.0)


@pytest.mark.parametrize("memory", ["the host's own", "a GPU's, which the host's stands for"])
def test_python_calls_what_the_handler_cannot(monkeypatch, memory):
    from kiln.hardware import current
    from kiln.interop.jax import handler

    monkeypatch.setattr(current, "cuda_is_host_memory", memory != "the host's own")
    monkeypatch.setattr(handler, "add", lambda compiled, sources: None)

    @cute.jit
    def turned(stream, x: cute.Tensor, y: cute.Tensor, *, by: Float32):
        scaled(x, y, by).launch(grid=x.shape[0], block=32, stream=stream)

    spec = kj.TensorSpec(mode=(1, 0))
    f = lambda x: kj.cutlass_call(turned, output_shape_dtype=x, input_spec=spec, output_spec=spec, by=5.0)(x)
    assert np.array_equal(jax.jit(f)(matrix()), 5 * matrix())


EXPORTED = """
import sys, jax, jax.numpy as jnp
from jax import export
import kiln.jax
x = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
assert (export.deserialize(open(sys.argv[1], "rb").read()).call(x) == 3 * x + 1).all()
"""


def test_what_is_exported_carries_its_code(tmp_path):
    pytest.importorskip("flatbuffers")
    importlib.import_module("jax.export")  # JAX before 0.7 does not load it by itself
    rows, columns = jax.export.symbolic_shape("rows, columns")
    f = jax.jit(lambda x: scaling(x, 3.0) + 1)
    checks = kj.get_export_disabled_safety_checks()
    made = jax.export.export(f, disabled_checks=checks)(jax.ShapeDtypeStruct((rows, columns), jnp.float32))
    file = tmp_path / "exported"
    file.write_bytes(made.serialize())
    assert np.array_equal(jax.export.deserialize(file.read_bytes()).call(matrix()), 3 * matrix() + 1)
    subprocess.run([sys.executable, "-c", EXPORTED, str(file)], check=True, env={**os.environ})


def test_multiples_of_symbolic_extents_are_checked():
    pytest.importorskip("flatbuffers")
    importlib.import_module("jax.export")  # JAX before 0.7 does not load it by itself
    (columns,) = jax.export.symbolic_shape("columns")
    f = jax.jit(lambda x: scaling(x, 3.0, input_spec=kj.TensorSpec(divisibility=(None, 4))))
    checks = kj.get_export_disabled_safety_checks()
    made = jax.export.export(f, disabled_checks=checks)(jax.ShapeDtypeStruct((2, columns), jnp.float32))
    assert np.array_equal(made.call(matrix(2, 8)), 3 * matrix(2, 8))
    with pytest.raises(jax.errors.JaxRuntimeError, match="scale: input 0 does not fit"):
        made.call(matrix(2, 6)).block_until_ready()


def test_code_of_a_newer_kiln_is_refused():
    from kiln.interop.jax import handler

    known = handler.HandledCall("f", "cpu", "module", b"", [])
    newer = known.packed()
    try:
        handler._ABI += 1
        newer = known.packed()
    finally:
        handler._ABI -= 1
    assert "exported by a newer Kiln: version 2" in str(handler._load(newer))
    assert "cannot be loaded" in str(handler._load(b"nonsense"))


def test_types_and_test_arrays():
    from kiln.jax import testing

    assert kj.cutlass_to_jax_dtype(Float32) == jnp.float32 and kj.jax_to_cutlass_dtype(jnp.int32) is Int32
    key = jax.random.key(0)
    x = testing.create_tensor((64,), jnp.float32, key)
    assert float(x.min()) >= -2 and float(x.max()) <= 2 and float(x.std()) > 0.5
    assert testing.create_tensor((2, 2), jnp.int32, key, fill_arange=True).tolist() == [[0, 1], [2, 3]]
    assert testing.create_tensor((2,), jnp.float32, key, fill_value=3).tolist() == [3, 3]


SHARDED = """
import sys, numpy as np, jax, jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from test_jax import scaling, matrix
mesh = Mesh(np.array(jax.devices()), ("rows",))
part = jax.shard_map(lambda x: scaling(x, 2.0), mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
assert len(jax.devices()) == 2 and np.array_equal(jax.jit(part)(matrix(4, 4)), 2 * matrix(4, 4))
for device in jax.devices():  # each by itself
    x = jax.device_put(matrix(), device)
    assert np.array_equal(jax.jit(lambda x: scaling(x, 3.0))(x), 3 * matrix())
"""


@pytest.mark.skipif(not LONG, reason="two processes of JAX; set KILN_LONG_TESTS=1")
def test_two_devices_and_the_cache_of_another_process(child, tmp_path):
    """What JAX's persistent cache keeps serves a process that compiled nothing."""
    (tmp_path / "sharded.py").write_text(SHARDED)
    kept, flags = tmp_path / "kept", "--xla_force_host_platform_device_count=2"
    here, helpers = os.path.dirname(__file__), os.path.dirname(jax_testing.__file__)
    for _ in range(2):
        done = child("sharded.py", str(kept), path=(here, helpers), XLA_FLAGS=flags, KILN_TARGET="cpu")
        assert done.returncode == 0, done.stderr
        assert list(kept.iterdir())
