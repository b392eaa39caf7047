"""Torch's `cuda` device from host memory."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def test_tensors_say_they_are_on_cuda_and_moving_copies(torch_program):
    torch_program(
        """
        import torch

        host = torch.arange(6.0)
        x = host.cuda()
        assert x.is_cuda and x.device == torch.device("cuda:0") and x.get_device() == 0 and not host.is_cuda
        x += 1
        assert host.tolist() == [0, 1, 2, 3, 4, 5] and x.tolist() == [1, 2, 3, 4, 5, 6]
        assert x.cuda() is x and x.to("cuda") is x and x.to(device="cuda", dtype=torch.float32) is x
        assert x.cpu().data_ptr() != x.data_ptr() and host.cpu() is host and host.to("cpu") is host
        assert x.to(torch.float16).is_cuda and not x.to(host).is_cuda and host.to(x).is_cuda

        made = [
            torch.empty(2, device=torch.device(device="cuda")), torch.zeros((2, 3), device=torch.device("cuda", 0)), torch.ones(3, device=0),
            torch.tensor([1, 2], device="cuda"), torch.full((2,), 7, device="cuda:0"), torch.arange(4, device="cuda"),
            torch.linspace(0, 1, 5, device="cuda"), torch.randint(0, 9, (4,), device="cuda"), torch.zeros_like(x),
            torch.empty_strided((2, 2), (1, 2), device="cuda"), x.new_zeros(3), host.new_empty(3, device="cuda"),
            torch.stack([x, x]), x[1:], x.view(2, 3).t().contiguous(), *x.view(2, 3).max(0), x.clone(), x == 1,
            torch.empty(2, device="cuda", dtype=torch.float8_e4m3fn), torch.as_tensor([1.0], device="cuda"),
        ]
        assert all(t.is_cuda for t in made), [t.device for t in made]
        assert not torch.zeros_like(x, device="cpu").is_cuda and not torch.zeros(2).is_cuda

        kept = torch.zeros(6)
        kept.copy_(x)
        assert not kept.is_cuda
        with torch.device("cuda"):
            assert torch.zeros(2).is_cuda
        torch.set_default_device("cuda")
        assert torch.zeros(2).is_cuda and not torch.zeros(2, device="cpu").is_cuda
        torch.set_default_device(None)
        assert not torch.zeros(2).is_cuda
        assert repr(torch.ones(2, device="cuda", dtype=torch.int8)) == "tensor([1, 1], device='cuda:0', dtype=torch.int8)"

        for bad, kind in ((lambda: x.numpy(), TypeError), (lambda: torch.zeros(2, device="cuda:1"), RuntimeError)):
            try:
                bad()
            except kind:
                pass
            else:
                raise AssertionError("no error")
        torch.testing.assert_close(x + 1, (host + 2).cuda())

        layer = torch.nn.Linear(6, 2).to("cuda")
        assert layer.weight.is_cuda and layer(x).is_cuda
        assert torch.nn.Linear(6, 2, device="cuda").weight.is_cuda and not torch.nn.Linear(6, 2).weight.is_cuda
        y = x.clone().requires_grad_()
        (y * y).sum().backward()
        assert y.grad.is_cuda and torch.equal(y.grad, 2 * x)

        # other ways to tensors and to the device
        import io, pickle

        x = torch.arange(6.0, device="cuda").reshape(2, 3)
        assert x.type() == "torch.cuda.FloatTensor" and torch.ones(2).type() == "torch.FloatTensor"
        assert torch.ones(2).type(torch.cuda.HalfTensor).is_cuda and torch.ones(2).type("torch.cuda.IntTensor").is_cuda
        assert x.type(torch.float16).is_cuda and not x.type("torch.FloatTensor").is_cuda
        assert torch.ones(2).type_as(x).is_cuda and not x.type_as(torch.ones(2)).is_cuda
        assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(torch.ones(2), torch.cuda.FloatTensor)
        assert torch.cuda.HalfTensor(2, 3).shape == (2, 3) and torch.cuda.LongTensor([3, 4]).tolist() == [3, 4]

        assert x.__dlpack_device__()[0] == 2 and torch.ones(2).__dlpack_device__()[0] == 1
        same = torch.from_dlpack(x)
        assert same.is_cuda and same.data_ptr() == x.data_ptr()
        interface = x.T.__cuda_array_interface__
        assert interface["data"][0] == x.data_ptr() and interface["shape"] == (3, 2) and interface["strides"] == (4, 12)

        file = io.BytesIO()
        torch.save({"a": x, "b": [torch.ones(2)]}, file)
        for where, on in (("cuda", True), (torch.device("cuda", 0), True), ("cpu", False)):
            file.seek(0)
            found = torch.load(file, map_location=where)
            assert found["a"].is_cuda == found["b"][0].is_cuda == on and torch.equal(found["a"].cpu(), x.cpu())
        assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())

        stream = torch.cuda.Stream()
        x.record_stream(stream)
        torch.cuda._sleep(1000)
        torch.cuda.profiler.start(); torch.cuda.profiler.stop()
        assert torch.cuda.cudart().cudaProfilerStart() == 0 and torch.cuda.cudart().cudaMemGetInfo(0)[1] > 0
        memory = torch.cuda.caching_allocator_alloc(64)
        torch.cuda.caching_allocator_delete(memory)
        torch.cuda.set_per_process_memory_fraction(0.5)

        layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU()).cuda().half()
        assert layer(x.half()).dtype == torch.float16 and layer.state_dict()["0.weight"].is_cuda
        with torch.autocast("cuda", dtype=torch.float16):
            assert (x @ x.T).is_cuda
        q = torch.randn(1, 2, 4, 8, device="cuda")
        assert torch.nn.functional.scaled_dot_product_attention(q, q, q).is_cuda
        """
    )


def test_memory_goes_on_behind_a_tensor_and_large_ones(torch_program):
    torch_program(
        """
        import ctypes, sys, torch

        for x in (torch.ones(3, device="cuda"), torch.zeros_like(torch.ones(3, device="cuda")), torch.ones(3).cuda()):
            before = x.tolist()
            ctypes.memset(x.data_ptr() + x.nbytes, 0xFF, 4096)
            assert x.tolist() == before
        view = torch.arange(6, device="cuda")[2:].contiguous()
        assert view.tolist() == [2, 3, 4, 5]

        # large tensors are made in another way
        n = 1 << 21
        torch.manual_seed(5)
        alone = torch.randn(4)
        torch.manual_seed(5)
        for dtype in (torch.float16, torch.float32):  # half is converted in another way
            torch.cuda.manual_seed(7)
            x = torch.randn(2, n, device="cuda", dtype=dtype)
            y = torch.randn_like(x)
            torch.cuda.manual_seed(7)
            assert torch.equal(x, torch.randn(2, n, device="cuda", dtype=dtype)) and not torch.equal(x, y)
            assert x.is_cuda and y.is_cuda and x.dtype == y.dtype == dtype and y.shape == (2, n)
            some = x[:, ::8].float()
            assert some.mean().abs() < 0.01 and (some.std() - 1).abs() < 0.01
            assert (some[0] * some[1]).mean().abs() < 0.01 and 0.0015 < (some.abs() > 3).float().mean() < 0.0039
        assert "sympy" not in sys.modules  # torch would import it to find their shapes: seconds
        assert torch.equal(torch.randn(4), alone)  # the CPU's numbers stay as they are
        with torch.inference_mode():
            assert torch.randn(2, 1 << 20, device="cuda").is_inference()
        generator = torch.Generator(device="cuda").manual_seed(1)
        a = torch.randn(n, device="cuda", generator=generator)
        assert torch.equal(a, torch.randn(n, device="cuda", generator=generator.manual_seed(1)))

        zeros, like = torch.zeros(n, 2, device="cuda"), torch.zeros_like(a)
        assert not zeros.any() and not like.any() and like.is_cuda
        turned = torch.empty_like(zeros.t())
        assert turned.stride() == (1, 2) and turned.is_cuda
        assert torch.empty_strided((2048, 2048), (1, 2048), device="cuda").stride() == (1, 2048)
        assert torch.zeros(n, device="cuda", requires_grad=True).requires_grad
        for x in (a, zeros, like, turned, torch.ones(n, device="cuda")):
            ctypes.memset(x.data_ptr() + x.nbytes, 0xFF, 4096)
        assert not zeros.any()
        """
    )


def test_memory_is_aligned_and_stays_for_a_while(torch_program):
    """Programs keep addresses of tensors that are gone, and put into them what must be aligned, as they can on a GPU."""
    torch_program(
        """
        import ctypes
        import torch

        made = [torch.arange(n, device="cuda", dtype=torch.int64) for n in range(1, 40)]
        made += [torch.full((3, n), 5.0).half().cuda() for n in range(1, 40)]
        made += [x.clone() for x in made[:5]] + [torch.zeros(9, dtype=torch.uint8, device="cuda")]
        assert all(x.data_ptr() % 128 == 0 for x in made if x.numel()), [x.data_ptr() % 128 for x in made]
        assert all(x.tolist() == list(range(n)) for n, x in enumerate(made[:39], 1)) and made[0].view(-1).is_cuda
        assert made[50].t().contiguous().t().tolist() == made[50].tolist() == [[5.0] * 12] * 3
        made[3].resize_(2)

        x = torch.full((1000,), 7, device="cuda", dtype=torch.int32)
        address = x.data_ptr()
        del x, made
        others = [torch.full((1000,), n, device="cuda", dtype=torch.int32) for n in range(20)]
        assert ctypes.c_int32.from_address(address + 3996).value == 7
        """
    )


def test_random_numbers_of_the_cpu_stay_as_they_are(torch_program):
    torch_program(
        """
        import torch

        torch.manual_seed(3)
        alone = torch.randn(4)
        torch.manual_seed(3)
        first = torch.randn(5, device="cuda")
        torch.empty(3, device="cuda").uniform_()
        assert torch.equal(torch.randn(4), alone)
        torch.manual_seed(3)
        assert torch.equal(torch.randn(5, device="cuda"), first)
        torch.cuda.manual_seed(3)
        assert torch.equal(torch.randn(5, device="cuda"), first)

        generator = torch.Generator(device="cuda").manual_seed(1)
        assert generator.device.type == "cuda" and isinstance(generator, torch.Generator)
        a = torch.rand(3, device="cuda", generator=generator)
        assert torch.equal(a, torch.rand(3, device="cuda", generator=generator.manual_seed(1)))
        assert isinstance(torch.Generator(), torch.Generator) and torch.Generator().device.type == "cpu"
        """
    )


@pytest.mark.quick(0)
def test_queries_streams_events_threads_and_children(gpu_program):
    gpu_program(
        """
        import multiprocessing, subprocess, sys, threading

        import torch
        from torch.cuda import current_stream

        def where(answers):
            answers.put(torch.zeros(2, device="cuda").device.type)

        if __name__ == "__main__":
            assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
            assert torch.cuda.get_device_capability() == (10, 0)
            assert int(torch.version.cuda.split(".")[0]) >= 13
            properties = torch.cuda.get_device_properties(0)
            assert properties.major == 10 and properties.multi_processor_count > 100 and properties.total_memory > 0
            free, total = torch.cuda.mem_get_info()
            assert 0 < free <= total
            torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.set_device(0)

            assert current_stream().cuda_stream == 0 and current_stream() == torch.cuda.default_stream()
            stream = torch.cuda.Stream()
            assert stream.cuda_stream != 0
            with torch.cuda.stream(stream):
                assert current_stream() == stream
            assert current_stream().cuda_stream == 0
            stream.wait_stream(current_stream()); stream.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(); end.record(stream); end.synchronize()
            assert start.elapsed_time(end) >= 0

            found = []
            thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda").is_cuda))
            thread.start(); thread.join()
            assert found == [True]

            context = multiprocessing.get_context("spawn")
            answers = context.Queue()
            child = context.Process(target=where, args=(answers,))
            child.start()
            assert answers.get(timeout=120) == "cuda"
            child.join()
            code = "import torch; assert torch.ones(2).cuda().is_cuda"
            subprocess.run([sys.executable, "-c", code], check=True)
        """,
        CUTE_DSL_ARCH="sm_100a",
    )


def test_graphs_record_and_run_again(torch_program):
    torch_program(
        """
        import torch
        import cutlass.cute as cute

        @cute.kernel
        def increment(x: cute.Tensor):
            i, _, _ = cute.arch.thread_idx()
            x[i] = x[i] + 1

        @cute.jit
        def launch(x: cute.Tensor):
            increment(x).launch(grid=1, block=4)

        x = torch.zeros(4, device="cuda")
        compiled = cute.compile(launch, x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.current_stream().cuda_stream != 0
            compiled(x)
            doubled = x * 2
            x += doubled
        assert x.tolist() == [0] * 4  # capturing does not run
        graph.replay()
        assert x.tolist() == [3] * 4 and doubled.tolist() == [2] * 4
        x.fill_(10)
        graph.replay()
        assert x.tolist() == [33] * 4 and doubled.tolist() == [22] * 4
        compiled(x)
        assert x.tolist() == [34] * 4
        """
    )


def test_graphs_record_calls_that_native_code_takes(torch_program):
    torch_program(
        """
        import torch
        import cutlass.cute as cute
        from cutlass.cute.runtime import from_dlpack

        @cute.kernel
        def increment(x: cute.Tensor):
            i, _, _ = cute.arch.thread_idx()
            x[i] = x[i] + 1

        @cute.jit
        def launch(x: cute.Tensor):
            increment(x).launch(grid=1, block=4)

        x = torch.zeros(4, device="cuda")
        argument = from_dlpack(x).mark_layout_dynamic()
        compiled = cute.compile(launch, argument)
        for _ in range(3):
            compiled(argument)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(argument)
            compiled(argument)
        assert x.tolist() == [3] * 4
        graph.replay()
        assert x.tolist() == [5] * 4
        compiled(argument)
        assert x.tolist() == [6] * 4
        """
    )


def test_graphs_record_calls_of_loaded_functions(torch_program, tmp_path):
    torch_program(
        f"""
        import torch
        import cutlass.cute as cute

        @cute.kernel
        def increment(x: cute.Tensor):
            i, _, _ = cute.arch.thread_idx()
            x[i] = x[i] + 1

        @cute.jit
        def launch(x: cute.Tensor):
            increment(x).launch(grid=1, block=4)

        x = torch.zeros(4, device="cuda")
        path = {str(tmp_path / "launch.o")!r}
        cute.compile(launch, x, options="--enable-tvm-ffi").export_to_c(path, function_name="launch")
        loaded = cute.runtime.load_module(path, enable_tvm_ffi=True).launch
        compiled = cute.compile(launch, x)
        loaded(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loaded(x)
            compiled(x)
            loaded(x)
        assert x.tolist() == [1] * 4
        graph.replay()
        graph.replay()
        assert x.tolist() == [7] * 4
        loaded(x)
        assert x.tolist() == [8] * 4
        """
    )


@pytest.mark.quick(0)
def test_nothing_is_served_elsewhere(gpu_program):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    gpu_program(
        """
        import torch

        assert not torch.cuda.is_available()
        try:
            torch.zeros(2, device="cuda")
        except (AssertionError, RuntimeError):
            pass
        else:
            raise AssertionError("served without being asked")
        """,
        "--",
    )


def test_matrix_products_with_another_result_type(torch_program):
    """torch has `out_dtype` for CUDA only: products of 16-bit matrices in f32."""
    torch_program(
        """
        import torch

        a, b = (torch.randn(2, 16, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        exact, c = a.float() @ b.float(), torch.randn(2, 16, 16, device="cuda")
        f32 = {"out_dtype": torch.float32}
        assert torch.allclose(torch.mm(a[0], b[0], **f32), exact[0], atol=1e-4)
        assert torch.allclose(torch.bmm(a, b, **f32), exact, atol=1e-4)
        assert torch.allclose(torch.addmm(c[0], a[0], b[0], **f32), exact[0] + c[0], atol=1e-4)
        assert torch.allclose(torch.baddbmm(c, a, b, **f32), exact + c, atol=1e-4)
        assert torch.mm(a[0], b[0], **f32).dtype is torch.float32 and torch.mm(a[0], b[0], **f32).is_cuda
        wide = a.float(), b.float()
        assert torch.equal(torch.bmm(*wide, **f32), torch.bmm(*wide)) and torch.bmm(*wide, **f32).is_cuda
        assert torch.equal(torch.addmm(c[0], wide[0][0], wide[1][0], **f32), torch.addmm(c[0], wide[0][0], wide[1][0]))
        """
    )


def test_the_profiler_records_the_cpu(torch_program):
    torch_program(
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], record_shapes=True) as prof:
            torch.ones(4, device="cuda") + 1
        assert "aten::add" in prof.key_averages().table(sort_by="cuda_time_total")
        """
    )


def test_gemms_with_block_scale_factors(torch_program):
    """As cuBLAS computes them: scale factors in blocks of 128 x 4."""
    torch_program(
        """
        import torch

        torch.manual_seed(0)
        m, n, k = 160, 64, 256
        for scale, size in ((torch.float8_e8m0fnu, 32), (torch.float8_e4m3fn, 16)):
            a = torch.randn(m, k).to(torch.float8_e4m3fn)
            b = torch.randn(n, k).to(torch.float8_e4m3fn)
            sfa = torch.exp2(torch.randint(-2, 3, (m, k // size)).float())
            sfb = torch.exp2(torch.randint(-2, 3, (n, k // size)).float())

            def blocked(factors):
                padded = torch.zeros(-(-len(factors) // 128) * 128, -(-factors.shape[1] // 4) * 4)
                padded[: len(factors), : factors.shape[1]] = factors
                out = torch.zeros(padded.numel())
                for r in range(padded.shape[0]):
                    for c in range(padded.shape[1]):
                        block = r // 128 * (padded.shape[1] // 4) + c // 4
                        out[block * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = padded[r, c]
                return out.to(scale).cuda()

            expected = (a.float() * sfa.repeat_interleave(size, 1)) @ (b.float() * sfb.repeat_interleave(size, 1)).t()
            got = torch._scaled_mm(a.cuda(), b.cuda().t(), blocked(sfa), blocked(sfb), out_dtype=torch.bfloat16)
            assert got.is_cuda
            torch.testing.assert_close(got.cpu(), expected.to(torch.bfloat16))

        # groups of rows, each with a matrix of its own, and groups along K
        from torch.nn.functional import ScalingType, SwizzleType, scaled_grouped_mm
        size, scale, ends = 32, torch.float8_e8m0fnu, torch.tensor([32, 160], dtype=torch.int32)
        recipe, swizzle = ScalingType.BlockWise1x32, SwizzleType.SWIZZLE_32_4_4
        a = torch.randint(-3, 4, (160, 160)).to(torch.float8_e4m3fn)
        b = torch.randint(-3, 4, (2, 48, 160)).to(torch.float8_e4m3fn)
        def scales(rows, k):
            return 2.0 ** torch.randint(-2, 3, (rows, k // size))
        def scaled(x, factors):
            return x.float() * factors.repeat_interleave(size, 1)
        def grouped(a, b, sfa, sfb):
            factors = [torch.cat([blocked(f).view(torch.uint8) for f in each]).view(scale) for each in (sfa, sfb)]
            return scaled_grouped_mm(
                a.cuda(), b.cuda(), scale_a=factors[0], scale_recipe_a=recipe, scale_b=factors[1], scale_recipe_b=recipe,
                swizzle_a=swizzle, swizzle_b=swizzle, offs=ends.cuda(), output_dtype=torch.bfloat16).cpu()
        parts = ((0, 32), (32, 160))
        sfa, sfb = [scales(end - start, 160) for start, end in parts], [scales(48, 160) for _ in parts]
        got = grouped(a, b.transpose(1, 2), sfa, sfb)
        expected = [scaled(a[i:j], sfa[n]) @ scaled(b[n], sfb[n]).t() for n, (i, j) in enumerate(parts)]
        torch.testing.assert_close(got, torch.cat(expected).to(torch.bfloat16))
        sfa, sfb = ([scales(rows, end - start) for start, end in parts] for rows in (160, 48))
        got = grouped(a, b[0].t(), sfa, sfb)
        expected = [scaled(a[:, i:j], sfa[n]) @ scaled(b[0][:, i:j], sfb[n]).t() for n, (i, j) in enumerate(parts)]
        torch.testing.assert_close(got, torch.stack(expected).to(torch.bfloat16))
        """
    )
