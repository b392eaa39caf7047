"""Small programs as people write them for a GPU, run unchanged by `kiln run --target cpu`."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def run(child, tmp_path: Path, text: str, **env: str):
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = child("-m", "kiln", "run", "--target", "cpu", "program.py", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.quick(0)
def test_saxpy_timed_and_tuned(child, tmp_path: Path):
    done = run(
        child,
        tmp_path,
        """
        import torch
        import cutlass
        import cutlass.cute as cute
        import cutlass.cute.testing as testing
        import cutlass.torch as cutlass_torch
        import cuda.bindings.driver as cuda
        from cutlass.cute.runtime import from_dlpack

        @cute.kernel
        def saxpy_kernel(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor, threads: cutlass.Constexpr):
            thread, _, _ = cute.arch.thread_idx()
            block, _, _ = cute.arch.block_idx()
            i = block * threads + thread
            if i < x.shape[0]:
                y[i] = (alpha * x[i].to(cutlass.Float32) + y[i].to(cutlass.Float32)).to(y.element_type)

        @testing.autotune_jit(params_dict={"threads": [32, 64, 0]}, update_on_change=["n"], warmup_iterations=0, iterations=1)
        @cute.jit
        def tuned(alpha: cutlass.Float32, x: cute.Tensor, y: cute.Tensor, n, stream: cuda.CUstream, threads: cutlass.Constexpr = 32):
            saxpy_kernel(alpha, x, y, threads).launch(grid=cute.ceil_div(n, threads), block=threads, stream=stream)

        n = 1000
        dtype = cutlass_torch.dtype(cutlass.Float16)
        x = torch.randn(n, device="cuda", dtype=dtype)
        y = torch.zeros(n, device="cuda", dtype=dtype)
        stream = cutlass_torch.current_stream()

        compiled = cute.compile(tuned, 2.0, from_dlpack(x), from_dlpack(y), n, stream, threads=128)
        compiled(2.0, from_dlpack(x), from_dlpack(y), n, stream)
        torch.cuda.synchronize()
        torch.testing.assert_close(y, 2 * x)

        def workspace():
            return testing.JitArguments(2.0, from_dlpack(x), from_dlpack(torch.zeros_like(x)), n, stream)

        for _ in range(2):
            time = testing.benchmark(compiled, workspace_generator=workspace, workspace_count=2, iterations=3, stream=stream)
            assert time > 0

        y.zero_()
        tuned(1.0, x, y, n, stream)  # tries 32 and 64 threads; 0 does not work
        runs = int((y[0] / x[0]).round())
        y.zero_()
        tuned(1.0, x, y, n, stream)  # the choice is known
        torch.testing.assert_close(y, x)
        assert runs > 3, runs

        def build(x, y, threads):
            if threads == 7:
                raise testing.CantImplementError("seven")
            compiled = cute.compile(tuned, 1.0, x, y, n, stream, threads=threads)
            return lambda: compiled(1.0, x, y, n, stream)

        best = testing.tune(build, {"threads": [7, 64]}, testing.JitArguments(x, y), 0, 1)
        assert best == {"threads": 64}, best
        """,
    )
    assert done.stderr.count("times say nothing about a GPU") == 1


@pytest.mark.quick(0)
def test_a_failing_assertion_in_a_kernel_ends_the_program(child, tmp_path: Path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import torch
            import cutlass.cute as cute
            from cutlass.cute import testing

            @cute.kernel
            def check(x: cute.Tensor):
                i, _, _ = cute.arch.thread_idx()
                testing.assert_(x[i] < 3, "too large")

            @cute.jit
            def launch(x: cute.Tensor):
                check(x).launch(grid=1, block=4)

            launch(torch.zeros(4, device="cuda"))
            print("zeros pass")
            launch(torch.arange(4, device="cuda"))
            """
        )
    )
    done = child("-m", "kiln", "run", "--target", "cpu", "program.py")
    assert done.returncode != 0 and "zeros pass" in done.stdout and "too large" in done.stderr
