"""Bank conflicts counted on the CPU target, against a model in Python and the cases everybody knows."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from kernel_testing import asm, run

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.dialects import nvgpu
from kiln.mlir import ir


def model(addresses, width):
    """(wavefronts, ideal) of one access by the lanes' byte addresses; None: the lane takes no part."""
    group = 32 if width <= 4 else 128 // width
    wavefronts = ideal = 0
    for first in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for address in addresses[first : first + group]:
            if address is not None:
                for word in range(address // 4, (address + width - 1) // 4 + 1):
                    banks.setdefault(word % 32, set()).add(word)
        if banks:
            ideal += 1
            wavefronts += max(map(len, banks.values()))
    return wavefronts, ideal


def counts(kernel, *arrays, **options):
    """{(operation, width): (accesses, wavefronts, ideal, worst)} of a launch, all places together."""
    with kiln.bank_conflicts() as report:
        run(kernel, *arrays, **options)
    found: dict = {}
    for one in report:
        before = found.get((one.operation, one.width), (0, 0, 0, 0))
        now = (one.accesses, one.wavefronts, one.ideal)
        found[one.operation, one.width] = (*(a + b for a, b in zip(before, now)), max(before[3], one.worst))
    return found


def tile_of(element, count):
    return cute.make_tensor(arch.alloc_smem(element, count, 128), cute.make_layout(count))


# --- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [cute.Int8, cute.Int16, cute.Int32, cute.Int64])
def test_random_accesses_of_all_widths(element):
    width = element.width // 8
    rng = np.random.default_rng(width)
    where = rng.integers(0, 256, (64, 32)).astype(np.int32)
    where[:8] = rng.integers(0, 4, (8, 32))  # words that lanes share
    taken = (rng.random((64, 32)) < 0.7).astype(np.int32)
    taken[10] = 0

    @cute.kernel
    def kernel(where: cute.Tensor, taken: cute.Tensor, out: cute.Tensor):
        tile = tile_of(element, 256)
        t = arch.thread_idx()[0]
        for i in range(64):
            if taken[i * 32 + t] != 0:
                out[t] = cute.Int32(tile[where[i * 32 + t]])

    got = counts(kernel, where.reshape(-1), taken.reshape(-1), np.zeros(32, np.int32))
    wants = []
    for row, use in zip(where, taken):
        if use.any():
            wants.append(model([int(w) * width if u else None for w, u in zip(row, use)], width))
    wavefronts, ideal = np.sum(wants, axis=0)
    assert got["ld", width][:3] == (len(wants), wavefronts, ideal)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_vectors(count):
    """Vectors of f32 at random places; more than 16 bytes are several accesses."""
    width = min(16, 4 * count)
    rng = np.random.default_rng(count)
    where = rng.integers(0, 32, (32, 32)).astype(np.int32)

    @cute.kernel
    def kernel(where: cute.Tensor, out: cute.Tensor):
        tile = cute.make_tensor(
            arch.alloc_smem(cute.Float32, 32 * count, 128), cute.make_layout((count, 32), stride=(1, count))
        )
        t = arch.thread_idx()[0]
        for i in range(32):
            registers = cute.make_rmem_tensor(count, cute.Float32)
            cute.autovec_copy(tile[None, where[i * 32 + t]], registers)
            out[t] = registers[0]

    got = counts(kernel, where.reshape(-1), np.zeros(32, np.float32))
    wants = [
        model([int(w) * 4 * count + piece for w in row], width) for row in where for piece in range(0, 4 * count, width)
    ]
    assert got["ld", width][:3] == (len(wants), *np.sum(wants, axis=0))


# --- classics ----------------------------------------------------------------------------------------------------------


def transpose(stride):
    @cute.kernel
    def kernel(src: cute.Tensor, dst: cute.Tensor):
        memory = arch.alloc_smem(cute.Float32, 32 * stride, 128)
        tile = cute.make_tensor(memory, cute.make_layout((32, 32), stride=(stride, 1)))
        x, y, _ = arch.thread_idx()
        for i in range(0, 32, 8):
            tile[y + i, x] = src[y + i, x]
        arch.sync_threads()
        for i in range(0, 32, 8):
            dst[y + i, x] = tile[x, y + i]

    return kernel


@pytest.mark.parametrize(("stride", "ways"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8)])
def test_transposing_a_tile(stride, ways):
    src = np.arange(1024, dtype=np.float32).reshape(32, 32)
    dst = np.zeros_like(src)
    got = counts(transpose(stride), src, dst, block=(32, 8, 1), grid=(2, 1, 1))
    np.testing.assert_array_equal(dst, src.T)
    assert got == {("st", 4): (64, 64, 64, 1), ("ld", 4): (64, 64 * ways, 64, ways)}


def test_lanes_that_read_one_word_share_it():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float32, 64)
        t = arch.thread_idx()[0]
        tile[2 * t] = cute.Float32(t)
        arch.sync_threads()
        out[t] = tile[5] + tile[t // 16 * 32]

    assert counts(kernel, np.zeros(32, np.float32)) == {("st", 4): (1, 2, 1, 2), ("ld", 4): (2, 3, 2, 2)}


def test_float4_in_a_row_is_free():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = cute.make_tensor(arch.alloc_smem(cute.Float32, 128, 128), cute.make_layout((4, 32)))
        t = arch.thread_idx()[0]
        registers = cute.make_rmem_tensor(4, cute.Float32)
        registers.fill(1.0)
        cute.autovec_copy(registers, tile[None, t])
        arch.sync_threads()
        cute.autovec_copy(tile[None, 31 - t], registers)
        out[t] = registers[0]

    assert counts(kernel, np.zeros(32, np.float32)) == {("st", 16): (1, 4, 4, 1), ("ld", 16): (1, 4, 4, 1)}


# --- which lanes belong together -----------------------------------------------------------------------------------------


def test_lanes_of_other_iterations_are_not_together():
    """Each lane accesses in other iterations: every access is by one lane, and free."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float32, 1024)
        t = arch.thread_idx()[0]
        for i in range(32):
            if i == t:
                tile[32 * t] = cute.Float32(1)
        arch.sync_threads()
        i = cute.Int32(0)
        while i < 32:
            if i == 31 - t:
                out[t] = tile[32 * t]
            i += 1

    assert counts(kernel, np.zeros(32, np.float32)) == {("st", 4): (32, 32, 32, 1), ("ld", 4): (32, 32, 32, 1)}


def test_loops_with_a_start_of_their_own_are_together():
    """A loop that strides over threads: the first iterations of all lanes are one access."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float32, 256)
        t = arch.thread_idx()[0]
        for i in range(t, 200, 64):
            tile[i] = cute.Float32(i)
        arch.sync_threads()
        for i in range(t, 64, 64):
            out[i] = tile[i]

    out = np.zeros(64, np.float32)
    # two warps: 200 = 3 * 64 + 8 elements, the last of them by eight lanes of the first warp
    assert counts(kernel, out, block=64) == {("st", 4): (7, 7, 7, 1), ("ld", 4): (2, 2, 2, 1)}
    np.testing.assert_array_equal(out, np.arange(64))


def test_a_short_warp_and_threads_that_leave():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float32, 2048)
        t = arch.thread_idx()[0]
        tile[t * 32] = cute.Float32(t)
        if t < 40:
            out[t] = tile[t * 32]

    assert counts(kernel, np.zeros(40, np.float32), block=48) == {("st", 4): (2, 48, 2, 32), ("ld", 4): (2, 40, 2, 32)}


# --- matrices and copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "pitch", "swizzled", "ways"), [(4, 64, False, 8), (4, 72, False, 1), (4, 64, True, 1), (2, 32, False, 4), (1, 8, False, 1)])  # fmt: skip
def test_rows_of_matrices(count, pitch, swizzled, ways):
    """Rows of 16 bytes, `pitch` halves apart; swizzled: the chunk of a row is exclusive-or'ed with its number."""
    vector = lambda: ir.VectorType.get([count], cute.Int32.mlir_type)

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float16, 16 * pitch)
        t = arch.thread_idx()[0]
        row, chunk = t % 16, t // 16
        if kiln.const_expr(swizzled):
            chunk = chunk ^ (row % 8)
        pointer = (tile.iterator + (row * pitch + chunk * 8) % (16 * pitch)).ir_value()
        value = nvgpu.mma.ldmatrix(pointer, vector(), count=count)
        nvgpu.mma.stmatrix(pointer, value, count=count)
        out[t] = 0

    got = counts(kernel, np.zeros(32, np.int32))
    want = (1, count * ways, count, ways)
    assert got == {("ldmatrix", 16): want, ("stmatrix", 16): want}


@pytest.mark.parametrize(("swizzled", "ways"), [(False, 8), (True, 1)])
def test_a_swizzled_layout(swizzled, ways):
    """Eight rows of 128 bytes: lanes that read the same 16 bytes of other rows collide unless the layout is swizzled."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        layout = cute.make_layout((32, 64), stride=(64, 1))
        if kiln.const_expr(swizzled):
            layout = cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, layout)
        tile = cute.make_tensor(arch.alloc_smem(cute.Float16, 32 * 64, 1024), layout)
        t = arch.thread_idx()[0]
        for i in kiln.range_constexpr(8):
            row, chunk = i * 4 + t // 8, t % 8
            cute.autovec_copy(cute.local_tile(x, (1, 8), (row, chunk)), cute.local_tile(tile, (1, 8), (row, chunk)))
        arch.sync_threads()
        for i in kiln.range_constexpr(8):
            cute.autovec_copy(cute.local_tile(tile, (1, 8), (t, i)), cute.local_tile(out, (1, 8), (t, i)))

    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float16)
    out = np.zeros_like(x)
    got = counts(kernel, x, out)
    np.testing.assert_array_equal(out, x)
    assert got == {("st", 16): (8, 32, 32, 1), ("ld", 16): (8, 32 * ways, 32, ways)}


def test_asynchronous_copies():
    def cp_async(target, source, elements: int):
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cute.Float32, num_bits_per_copy=32 * elements)
        tensors = (cute.make_tensor(at.align(4 * elements), cute.make_layout(elements)) for at in (source, target))
        cute.copy(atom, *tensors)

    @cute.kernel
    def kernel(x: cute.Tensor):
        tile = tile_of(cute.Float32, 32 * 64)
        t = arch.thread_idx()[0]
        cp_async(tile.iterator + t * 4, x.iterator + t * 4, 4)
        cp_async(tile.iterator + t * 32, x.iterator + t, 1)
        arch.cp_async_commit_group()
        arch.cp_async_wait_group(0)

    got = counts(kernel, np.zeros(128, np.float32))
    assert got == {("cp.async", 16): (1, 4, 4, 1), ("cp.async", 4): (1, 32, 1, 32)}


def test_inline_ptx_counts_too():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Float32, 64)
        t = arch.thread_idx()[0]
        asm(None, [(tile.iterator + 2 * t).toint()], "st.shared.u32 [$0], 7;", "r")
        out[t] = 0

    assert counts(kernel, np.zeros(32, np.int32)) == {("st", 4): (1, 2, 1, 2)}


# --- reports -------------------------------------------------------------------------------------------------------------


def test_the_report():
    src = np.zeros((32, 32), np.float32)
    with kiln.bank_conflicts() as report:
        run(transpose(32), src, src.copy(), block=(32, 8, 1))
        run(transpose(32), src, src.copy(), block=(32, 8, 1))
    assert [place.operation for place in report] == ["ld", "st"]  # what loses most comes first
    assert report.conflicts == 2 * 32 * 31 and report.places[0].accesses == 64
    text = str(report)
    assert "32-way" in text and "dst[y + i, x] = tile[x, y + i]" in text and "test_bank_counter.py" in text
    assert text.endswith("1984 of 2112 wavefronts are lost to bank conflicts (94 %)")
    first, second = json.loads(report.json())
    assert first["conflicts"] == 1984 and second["conflicts"] == 0 and first["kernel"] == "kernel"
    assert first["span"]["file"] == __file__ and first["width"] == 4
    with kiln.bank_conflicts() as nothing:
        pass
    assert str(nothing) == "no kernel accessed shared memory"


def test_the_sanitizer_does_not_count():
    with pytest.raises(kiln.DSLRuntimeError, match="conflicts are no errors"):
        kiln.sanitize("race,banks")


def test_every_call_is_counted():
    """Also those that native code would make after the first few."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = tile_of(cute.Int32, 64)
        t = arch.thread_idx()[0]
        tile[2 * t] = t
        out[t] = tile[2 * t]

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=32)

    out = np.zeros(32, np.int32)
    for _ in range(2):
        with kiln.bank_conflicts() as report:
            for _ in range(30):
                main(out)
        assert report.conflicts == 60
        with kiln.target("cpu"):
            for _ in range(30):
                main(out)
    assert report.conflicts == 60


PROGRAM = """
import sys
import numpy as np
import kiln.cute as cute

@cute.kernel
def spread(out: cute.Tensor):
    memory = cute.arch.alloc_smem(cute.Int32, 64)
    t = cute.arch.thread_idx()[0]
    tile = cute.make_tensor(memory, cute.make_layout(64))
    tile[2 * t] = t
    out[t] = tile[2 * t]

@cute.jit
def main(out: cute.Tensor):
    spread(out).launch(grid=1, block=32)

main(np.zeros(32, np.int32))
print("arguments", sys.argv[1:])
"""


@pytest.mark.quick(0)
def test_the_command(tmp_path):
    program = tmp_path / "spread.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "kiln", "inspect", "--bank-conflicts"]
    made = subprocess.run([*command, program, "a", "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert made.stdout.startswith("arguments ['a', '--json']\n")
    assert "2-way  st 4 B" in made.stdout and "2 of 4 wavefronts are lost" in made.stdout
    file = tmp_path / "counts.json"
    subprocess.run([*command, "--json", file, program], check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert {(one["operation"], one["conflicts"]) for one in json.loads(file.read_text())["result"]} == {
        ("st", 1),
        ("ld", 1),
    }
    command[-1] = "--coalescing"
    made = subprocess.run([*command, program], capture_output=True, text=True, check=True, timeout=60)
    assert made.stdout.endswith("4 sectors of global memory, 4 per access\n")
    wrong = subprocess.run([*command[:-1], program], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "say what to look at" in wrong.stderr
