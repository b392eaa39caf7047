"""GEMM on a GPU at full sizes, against float64."""

from __future__ import annotations

import itertools

import pytest

from kiln import kernels

torch = pytest.importorskip("torch")

LAYOUTS = list(itertools.product("NT", "NT"))
TOLERANCE = {
    torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.int8: 0.0, torch.float8_e4m3fn: 2e-3,
    torch.float8_e5m2: 2e-3,
}  # fmt: skip
"""Relative to the sum of the absolute values of the addends: the rounding of the result, or of accumulators in f32."""


def operand(rows, columns, dtype, layout, batch=()):
    """Normal data; N: rows are contiguous."""
    shape = (*batch, rows, columns) if layout == "N" else (*batch, columns, rows)
    if dtype is torch.int8:
        x = torch.randint(-128, 128, shape, device="cuda", dtype=torch.int32).to(dtype)
    else:
        x = torch.randn(shape, device="cuda").to(dtype)
    return x if layout == "N" else x.mT


def check(got, a, b, tolerance):
    a, b = a.double(), b.double()
    error = (got.double() - a @ b).abs() / (a.abs() @ b.abs()).clamp(min=1e-30)
    assert error.max().item() <= tolerance


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(4096, 4096, 4096), (1000, 520, 264), (257, 129, 513), (1, 1, 1), (64, 4096, 40)]
)
def test_layouts_and_shapes(m, n, k, dtype, layout):
    a, b = operand(m, k, dtype, layout[0]), operand(k, n, dtype, layout[1])
    check(kernels.gemm(a, b), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_types(dtype, layout):
    a, b = operand(1040, 272, dtype, layout[0]), operand(272, 528, dtype, layout[1])
    check(kernels.gemm(a, b), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf32_is_rounded_to_nearest(layout):
    a, b = operand(1000, 300, torch.float32, layout[0]), operand(300, 500, torch.float32, layout[1])

    def rounded(x):
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)

    # accumulators of the tensor cores keep fewer bits than f32
    check(kernels.gemm(a, b, precision="tf32"), rounded(a), rounded(b), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (250, 4000, 4080), (1024, 1024, 1024), (3000, 3000, 3000)],
)
def test_configs_that_are_chosen(m, n, k, dtype):
    """Clusters that share K, tiles that are no powers of two, and few rows."""
    a, b = operand(m, k, dtype, "N"), operand(k, n, dtype, "T")
    got = kernels.gemm(a, b)
    check(got, a, b, TOLERANCE[dtype])
    assert torch.equal(got, kernels.gemm(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2])
def test_bytes_of_any_layout(dtype, layout):
    a, b = operand(2048, 2048, dtype, layout[0]), operand(2048, 1920, dtype, layout[1])
    check(kernels.gemm(a, b), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize(("m", "n", "k"), [(2048, 2048, 512), (3072, 3072, 64), (64, 4096, 4096), (333, 777, 1000)])
def test_everything_in_the_epilogue_of_large_gemms(m, n, k):
    a, b = operand(m, k, torch.float16, "N"), operand(k, n, torch.float16, "T")
    c, bias, gate = (torch.randn(shape, device="cuda") for shape in ((m, n), (n,), (m, 1)))
    options = {"alpha": 0.5, "beta": -2.0, "c": c, "bias": bias.half(), "activation": "gelu", "extras": [gate]}
    got = kernels.gemm(a, b, **options, epilogue=lambda value, gate: value * gate, out_dtype=torch.float32)
    sums = 0.5 * (a.double() @ b.double()) - 2.0 * c.double() + bias.half().double()
    wanted = torch.nn.functional.gelu(sums) * gate.double()
    # accumulators of the tensor cores keep fewer bits than f32
    size = 0.5 * (a.double().abs() @ b.double().abs()) + 2.0 * c.double().abs() + bias.half().double().abs()
    error = (got.double() - wanted).abs() / (size * gate.double().abs()).clamp(min=1e-3)
    assert error.max().item() <= 3e-5


def test_batches_and_everything_after():
    a, b = operand(300, 200, torch.float16, "N", (5,)), operand(200, 136, torch.float16, "T")
    c, bias, gate = (
        torch.randn(5, 300, 136, device="cuda"),
        torch.randn(136, device="cuda"),
        torch.randn(300, 1, device="cuda"),
    )
    got = kernels.gemm(
        a, b, alpha=0.5, beta=-2.0, c=c, bias=bias, activation="silu", out_dtype=torch.float32,
        epilogue=lambda value, gate: value * gate, extras=[gate],
    )  # fmt: skip
    sums = 0.5 * (a.double() @ b.double()) - 2.0 * c.double() + bias.double()
    torch.testing.assert_close(got.double(), sums * torch.sigmoid(sums) * gate.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_split_k(dtype):
    a, b = operand(64, 8192, dtype, "N"), operand(8192, 128, dtype, "T")
    bias = torch.randn(128, device="cuda")
    got = kernels.gemm(a, b, bias=bias)  # so few tiles that K is cut
    assert torch.equal(got, kernels.gemm(a, b, bias=bias))  # in a fixed order
    check(got - bias, a, b, 2 * TOLERANCE[dtype])


def test_a_config_serves_other_arrays_and_streams():
    shape = (256, 256)
    first = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(2)]
    second = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(2)]
    check(kernels.gemm(*first), first[0], first[1], 1e-3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = kernels.gemm(*second)
    stream.synchronize()
    check(got, second[0], second[1], 1e-3)
    host = first[0].cpu()
    with pytest.raises(TypeError, match="host"):
        kernels.gemm(host, host)


def test_offsets_past_32_bits():
    wide = torch.empty(40000, 60000, device="cuda", dtype=torch.float16)  # 4.8 GB
    a = wide[:, :64]
    a.normal_()
    b = operand(64, 128, torch.float16, "N")
    check(kernels.gemm(a, b), a, b, 1e-3)
    del wide


@pytest.mark.parametrize("config", [None, kernels.Sm80GemmConfig((128, 128, 32), (2, 2), 4)])
def test_results_of_more_than_32_bits(config):
    a, b = operand(65536, 64, torch.float16, "N"), operand(64, 32776, torch.float16, "N")
    got = kernels.gemm(a, b, config=config)
    assert got.numel() > 1 << 31
    check(got[-300:, -300:], a[-300:], b[:, -300:], 1e-3)
    check(got[:300], a[:300], b, 1e-3)


HOPPER = [
    ((128, 256), (2, 1), False), ((128, 256), (1, 2), False), ((256, 128), (1, 2), False), ((128, 192), (2, 1), False),
    ((128, 192), (2, 1), True), ((128, 128), (2, 1), True), ((128, 128), (2, 2), True), ((64, 256), (2, 1), True), ((64, 64), (1, 1), True),
]  # fmt: skip


def hopper(tile, cluster, pingpong, dtype=torch.float16, stages=3):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("warp groups multiply on sm_90a alone")
    width = torch.empty((), dtype=dtype).element_size()
    return kernels.Sm90GemmConfig((*tile, 128 // width), cluster, stages, 4, pingpong)


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 4096, 1024), (1000, 520, 264), (3, 8, 8), (2100, 1304, 72)])
@pytest.mark.parametrize(("tile", "cluster", "pingpong"), HOPPER)
def test_warp_groups(m, n, k, tile, cluster, pingpong):
    a, b = operand(m, k, torch.float16, "N"), operand(k, n, torch.float16, "T")
    config = hopper(tile, cluster, pingpong)
    got = kernels.gemm(a, b, config=config)
    check(got, a, b, TOLERANCE[torch.float16])
    for _ in range(20):
        assert torch.equal(kernels.gemm(a, b, config=config), got)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pingpong", [False, True])
def test_layouts_of_warp_groups(layout, pingpong):
    a, b = operand(1000, 264, torch.bfloat16, layout[0], (3,)), operand(264, 520, torch.bfloat16, layout[1])
    check(kernels.gemm(a, b, config=hopper((128, 128), (2, 1), pingpong)), a, b, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_bytes_of_warp_groups(dtype, pingpong):
    a, b = operand(1000, 4112, dtype, "N"), operand(4112, 528, dtype, "T")
    config = hopper((64, 128) if pingpong else (128, 128), (2, 1), pingpong, dtype)
    check(kernels.gemm(a, b, config=config), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize(("tile", "pingpong"), [((128, 128), False), ((128, 128), True), ((128, 192), True)])
def test_fused_epilogues_of_warpgroups(tile, pingpong):
    m, n = 1000, 520
    a, b = operand(m, 264, torch.bfloat16, "N"), operand(264, n, torch.bfloat16, "T")
    c, bias, gate = (torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in ((m, n), (n,), (m, 1)))
    got = kernels.gemm(
        a, b, alpha=0.5, beta=2.0, c=c, bias=bias, activation="silu", epilogue=lambda v, g: v * g, extras=[gate],
        out_dtype=torch.float32, config=hopper(tile, (2, 1), pingpong),
    )  # fmt: skip
    sums = a.double() @ b.double()
    wanted = torch.nn.functional.silu(0.5 * sums + 2.0 * c.double() + bias.double()) * gate.double()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-3)
    got = kernels.gemm(a, b, c=c, config=hopper(tile, (2, 1), pingpong))
    torch.testing.assert_close(got.double(), sums + c.double(), rtol=8e-3, atol=1e-2)


FEW = [
    kernels.Sm90GemmConfig((128, 16, 64), (1, 1), 10, 8, swap_ab=True),
    kernels.Sm90GemmConfig((64, 16, 64), (1, 1), 12, 8, pingpong=True, swap_ab=True),
    kernels.Sm90GemmConfig((128, 16, 64), (1, 1), 10, 8, split_k_cluster=2, swap_ab=True),
    kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 5, 8, split_k_cluster=2),
    kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 8, 8, split_k_cluster=8),
    kernels.Sm90GemmConfig((64, 64, 64), (1, 1), 8, 8, pingpong=True, split_k_cluster=2),
    kernels.Sm90GemmConfig((192, 64, 64), (1, 1), 6, 8, pingpong=True, split_k_cluster=2),
    kernels.Sm90GemmConfig((64, 64, 64), (1, 1), 8, 8, pingpong=True, split_k_cluster=4, swap_ab=True),
    kernels.Sm90GemmConfig((64, 32, 64), (1, 2), 8, 8, pingpong=True, swap_ab=True),
    kernels.Sm90GemmConfig((64, 24, 64), (1, 1), 12, 8, pingpong=True, swap_ab=True, transpose_out=True),
    kernels.Sm90GemmConfig((128, 192, 64), (1, 1), 5, 8, swap_ab=True, transpose_out=True),
    kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 8, 8, split_k_cluster=2, split_k=5),
    kernels.Sm90GemmConfig((64, 16, 64), (1, 1), 12, 8, pingpong=True, swap_ab=True, split_k=7),
]


@pytest.mark.parametrize("config", FEW, ids=str)
def test_few_rows_and_split_k(config):
    for m, n, k in ((1, 4096, 4096), (13, 1000, 2056), (300, 520, 4104)):
        a, b = operand(m, k, torch.bfloat16, "N"), operand(k, n, torch.bfloat16, "T")
        got = kernels.gemm(a, b, config=config)
        check(got, a, b, TOLERANCE[torch.bfloat16])
        assert torch.equal(got, kernels.gemm(a, b, config=config))


GROUPED = [
    None,
    kernels.Sm90GemmConfig((128, 256, 64), (1, 2), 4, 8),
    kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 5, 8, pingpong=True),
    kernels.Sm90GemmConfig((128, 32, 64), (1, 1), 8, 8, swap_ab=True),
]


@pytest.mark.parametrize("config", GROUPED, ids=str)
def test_groups(config):
    """Rows behind the last group stay as they are; empty groups, and one that ends behind the array."""
    sizes = [130, 0, 1, 77, 500, 64, 300, 0, 128]
    ends = torch.cumsum(torch.tensor(sizes), 0).to(torch.int32).cuda()
    a, b = operand(1300, 520, torch.bfloat16, "N"), operand(520, 1032, torch.bfloat16, "T", (len(sizes),))
    out = torch.full((1300, 1032), 7.0, device="cuda", dtype=torch.bfloat16)
    for last in (1200, 1 << 30):
        ends[-1] = last
        kernels.grouped_gemm(a, b, offsets=ends, out=out, config=config)
        first = 0
        for group, end in enumerate([*ends[:-1].tolist(), min(last, 1300)]):
            if end > first:
                check(out[first:end], a[first:end], b[group], TOLERANCE[torch.bfloat16])
            first = end
        assert (out[first:] == 7).all()
    counts = torch.tensor([100, 0, 300], device="cuda")
    a = operand(300, 520, torch.bfloat16, "N", (3,))
    got = kernels.grouped_gemm(a, b[:3], counts=counts, config=config)
    for group, count in enumerate(counts.tolist()):
        if count:
            check(got[group, :count], a[group, :count], b[group], TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("config", [None, kernels.Sm90GemmConfig((128, 128, 64), (2, 1), 5, 8, pingpong=True)], ids=str)
def test_columns_behind_the_last(config):
    """Stay as they are, where rows of the result are parts of longer ones: TMA would store whole 16 bytes."""
    a, whole = operand(600, 520, torch.float16, "N"), torch.full((600, 1040), 7.0, device="cuda", dtype=torch.float16)
    for columns in (1027, 1028, 1032):
        b = operand(520, columns, torch.float16, "T")
        kernels.gemm(a, b, out=whole[:, :columns], config=config)
        check(whole[:, :columns], a, b, TOLERANCE[torch.float16])
        assert (whole[:, columns:] == 7).all()


@pytest.mark.parametrize("columns", [1028, 1027])
@pytest.mark.parametrize("config", [GROUPED[0], GROUPED[-1]], ids=str)
def test_columns_behind_those_of_groups(config, columns):
    ends = torch.tensor([37, 100, 333, 600], device="cuda", dtype=torch.int32)
    a, b = operand(600, 520, torch.float16, "N"), operand(520, columns, torch.float16, "T", (4,))
    whole = torch.full((600, 1040), 7.0, device="cuda", dtype=torch.float16)
    kernels.grouped_gemm(a, b, offsets=ends, out=whole[:, :columns], config=config)
    for group, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        check(whole[first:end, :columns], a[first:end], b[group], TOLERANCE[torch.float16])
    assert (whole[:, columns:] == 7).all()


def test_strides_of_one_group():
    a, b = operand(64, 104, torch.float16, "N")[:, :100], operand(64, 104, torch.float16, "N")[:, :100].T[None]
    config = kernels.Sm90GemmConfig((128, 64, 64), (1, 1), 3)
    for x in (b, b.as_strided(b.shape, (100, 1, 104))):
        got = kernels.grouped_gemm(a, x, offsets=torch.tensor([64], device="cuda"), config=config)
        check(got, a, b[0], TOLERANCE[torch.float16])


@pytest.mark.parametrize(
    ("dtype", "config"),
    [(torch.float16, None), (torch.float32, None), (torch.float16, kernels.Sm80GemmConfig((64, 64, 32), (2, 2), 3, 2))],
)
def test_more_batches_than_a_mode_of_a_grid(dtype, config):
    a, b = operand(4, 40, dtype, "N", (70000,)), operand(40, 4, dtype, "N", (70000,))
    check(kernels.gemm(a, b, config=config), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize(("m", "n", "k"), [(72, 11008, 2048), (200, 5120, 2048), (328, 8192, 4096)])
def test_integers_into_floats(m, n, k):
    """Of 16 bits: tiles are transposed, and as narrow as integers can have them."""
    a, b = (torch.randint(-3, 4, x, device="cuda", dtype=torch.int8) for x in ((m, k), (n, k)))
    check(kernels.gemm(a, b.T, out_dtype=torch.float16), a, b.T, TOLERANCE[torch.float16])


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_activations_of_what_is_no_number(activation):
    c = torch.randn(300, 520, device="cuda")
    c[:4, :2] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0], device="cuda")[:, None]
    a, b = torch.zeros(300, 64, device="cuda").bfloat16(), torch.zeros(64, 520, device="cuda").bfloat16()
    got = kernels.gemm(a, b, c=c, activation=activation, out_dtype=torch.float32)
    wanted = getattr(torch.nn.functional, activation)(c)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_block_scales():
    a, b = operand(1000, 1168, torch.float8_e4m3fn, "N"), operand(1168, 720, torch.float8_e4m3fn, "T")
    of_a, of_b = torch.rand(1000, 10, device="cuda") + 0.5, torch.rand(10, 6, device="cuda") + 0.5
    spread = torch.repeat_interleave
    left = a.double() * spread(of_a, 128, 1)[:, :1168]
    right = b.double() * spread(spread(of_b, 128, 0), 128, 1)[:1168, :720]
    got = kernels.gemm(a, b, scale_a=of_a, scale_b=of_b)
    check(got, left, right, 2e-3)
    for precision in ("ieee", "fast"):
        assert torch.equal(got, kernels.gemm(a, b, scale_a=of_a, scale_b=of_b, precision=precision))
    check(kernels.gemm(a, b, precision="fast"), a, b, 1e-2)
    a = a[:, :1165].contiguous()  # rows begin anywhere: not for TMA
    check(kernels.gemm(a, b[:1165], scale_a=of_a, scale_b=of_b), left[:, :1165], right[:1165], 2e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_begin_anywhere(layout):
    """Copied first, where that is worth it."""
    a, b = operand(1001, 1025, torch.float16, layout[0]), operand(1025, 1999, torch.float16, layout[1])
    config = kernels.Sm90GemmConfig((128, 192, 64), (2, 1), 5, 8, pingpong=True)
    for got in (kernels.gemm(a, b, config=config), kernels.gemm(a, b)):
        check(got, a, b, TOLERANCE[torch.float16])


def test_split_k_by_a_second_kernel():
    a, b = operand(300, 16384, torch.bfloat16, "N"), operand(16384, 520, torch.bfloat16, "T")
    config = kernels.Sm90GemmConfig((128, 128, 64), (1, 1), 4, 8, pingpong=True, split_k=7)
    got = kernels.gemm(a, b, config=config)
    check(got, a, b, TOLERANCE[torch.bfloat16])
    assert torch.equal(got, kernels.gemm(a, b, config=config))


@pytest.mark.parametrize("config", [None, kernels.Sm90GemmConfig((128, 256, 64), (2, 1), 3, 8)])
def test_several_results_and_row_sums(config):
    """The same bits each time."""
    a, b = operand(1000, 520, torch.bfloat16, "N"), operand(520, 776, torch.bfloat16, "T")
    bias = torch.randn(776, device="cuda")
    call = lambda: kernels.gemm(  # noqa: E731
        a,
        b,
        bias=bias,
        epilogue=lambda x: (x, x * 0.5),
        out_dtype=(torch.bfloat16, torch.float32),
        row_reduction="squares",
        config=config,
    )
    got = call()
    wanted = a.double() @ b.double() + bias.double()
    assert (got[0].double() - wanted).abs().max() < 0.5
    assert (got[1].double() - wanted * 0.5).abs().max() < 1e-3
    assert ((got[2].double() - (wanted**2).sum(1)).abs() / (wanted**2).sum(1)).max() < 1e-5
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(got, call(), strict=True))


@pytest.mark.parametrize(
    "config", [kernels.Sm90GemmConfig((128, 128, 32), (2, 1), 4, 8), kernels.Sm80GemmConfig((64, 64, 32), (2, 2), 4)]
)
def test_tf32_of_warp_groups_is_rounded_to_nearest(config):
    a, b = operand(520, 264, torch.float32, "N"), operand(264, 392, torch.float32, "T")

    def rounded(x, add):
        bits = x.contiguous().view(torch.int32)
        even = (bits >> 13) & 1 if add == 0xFFF else 0
        return ((bits + add + even) & ~0x1FFF).view(torch.float32).double()

    got = kernels.gemm(a, b, precision="tf32", config=config).double()
    errors = {
        name: (got - rounded(a, add) @ rounded(b, add)).abs().max().item()
        for name, add in (("even", 0xFFF), ("away", 0x1000), ("cut", 0))
    }
    assert min(errors["even"], errors["away"]) < 1e-4, errors


@pytest.mark.parametrize("m", [1, 40, 300])
@pytest.mark.parametrize(("bits", "groups"), [(8, 0), (8, 4), (4, 0), (4, 8)])
def test_mixed_inputs(m, bits, groups):
    n, k = 1000, 1024
    a, scale = operand(m, k, torch.bfloat16, "N"), torch.rand((groups, n) if groups else (n,), device="cuda") + 0.5
    if bits == 8:
        b = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8).T
        whole = b.double()
    else:
        b = torch.randint(-128, 128, (n, k // 2), device="cuda", dtype=torch.int8).T
        pair = b.int()
        whole = torch.stack([(pair << 28) >> 28, (pair << 24) >> 28], 1).reshape(k, n).double()
    whole = whole * (scale.repeat_interleave(k // groups, 0) if groups else scale).double()
    check(kernels.gemm(a, b, scale_b=scale), a, whole, 2e-2)
