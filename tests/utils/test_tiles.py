"""`kiln.utils.tiles`: the short kernels of the page for users of Triton, at sizes that are no whole tiles."""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from nvidia_testing import needs_nvdisasm

import kiln
from kiln import cute
from kiln.hardware import driver
from kiln.testing import dry_run
from kiln.utils import tiles

PAGE = Path(__file__).parents[2] / "docs" / "come-from" / "triton.md"
MOST_LINES = {"softmax": 25, "matmul": 45, "attention": 60}
"""What is asked of the kernels: lines of code with their imports and launches."""

pytestmark = pytest.mark.skipif(driver.available(), reason="arrays of numpy, for the CPU target")


def kernels():
    """Return the text of the page's kernels by name, up to where they are called."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = {}
    for name in MOST_LINES:
        (block,) = (block for block in blocks if f"def {name}_kernel" in block)
        launch = re.search(r"@cute.jit\ndef .*?\n\n", block, re.DOTALL)
        found[name] = block[: launch.end()]
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The kernels as a module."""
    file = tmp_path_factory.mktemp("page") / "short_kernels.py"
    file.write_text("import numpy as np\nfrom kiln import cute\n" + "\n\n".join(kernels().values()))
    spec = importlib.util.spec_from_file_location("short_kernels", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_kernels_are_short():
    lines = {name: sum(bool(line.strip()) for line in text.splitlines()) for name, text in kernels().items()}
    assert all(lines[name] <= most for name, most in MOST_LINES.items()), lines


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize(("m", "n", "k", "transposed"), [(100, 72, 40, True), (33, 17, 65, False), (300, 40, 7, False)])
def test_matmul_of_any_size(page, m, n, k, transposed):
    a = halves(m, k)
    b = halves(k, n, seed=1).T if transposed else halves(n, k, seed=1)
    c = np.full((m, n), np.nan, np.float16)
    with kiln.sanitize(), warnings.catch_warnings():
        warnings.simplefilter("ignore", kiln.DSLOptimizationWarning)
        page.matmul(a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    exact = np.where(exact >= 0, exact, 0.01 * exact)
    assert (np.abs(c - exact) <= 1e-3 * np.abs(exact) + 2e-3 * np.sqrt(k)).all()


@pytest.mark.parametrize(("heads", "length", "depth"), [(2, 100, 64), (1, 1, 64)])
def test_attention(page, heads, length, depth):
    q, k, v = (halves(heads, length, depth, seed=seed) for seed in range(3))
    out = np.full_like(q, np.nan)
    with kiln.sanitize():
        page.attention(q, k, v, out, depth)
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / np.sqrt(depth)
    weights = np.exp(np.where(np.tri(length) > 0, scores - scores.max(2, keepdims=True), -np.inf))
    exact = weights / weights.sum(2, keepdims=True) @ v.astype(np.float64)
    assert np.allclose(out, exact, atol=3e-3)


def test_narrow_copies_are_asked_for_and_warned_of(page):
    a, b, c = halves(32, 65), halves(32, 65), np.zeros((32, 32), np.float16)
    with pytest.warns(kiln.DSLOptimizationWarning, match="copies 2 bytes at once"):
        page.matmul(a[:, :63], b[:, :63], c)

    @cute.kernel
    def one(x: cute.Tensor, mma: cute.TiledMma):
        tiles.StagedTile(mma, "A", x, (64, 32), 2)

    @cute.jit
    def launch(x: cute.Tensor):
        mma = tiles.warp_mma(x.element_type)
        one(x, mma).launch(grid=1, block=mma.size)

    with pytest.raises(kiln.DSLUserCodeTypeError, match="not known to be a multiple") as refused:
        launch(halves(64, 128)[:, :65])
    assert 'align="auto"' in str(refused.value)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="warp_mma of Float32"):
        launch(np.zeros((64, 64), np.float32))


@pytest.mark.parametrize(
    ("tile", "warps", "transposed", "told"),
    [
        ((16, 32), (1, 4), False, "4 threads lie along mode 1.* and 32 along the other one, of 16"),
        ((32, 16), (1, 4), True, "4 threads lie along mode 0.* and 32 along the other one, of 16"),
        ((64, 36), (2, 2), False, "a multiple of 8 elements along mode 1"),
        ((48, 32), (2, 2), False, "a multiple of .* 32 along the other one"),
    ],
)
def test_tiles_that_threads_cannot_share_are_refused(tile, warps, transposed, told):
    """With more threads than rows some would write to the next stage."""

    @cute.kernel
    def one(x: cute.Tensor, mma: cute.TiledMma):
        tiles.StagedTile(mma, "A", x, tile, 2)

    @cute.jit
    def launch(x: cute.Tensor):
        mma = tiles.warp_mma(x.element_type, warps)
        one(x, mma).launch(grid=1, block=mma.size)

    x = halves(128, 128)
    with pytest.raises(kiln.DSLUserCodeTypeError, match=f"(?s){told}"):
        launch(x.T if transposed else x)


@needs_nvdisasm
def test_they_compile_for_gpus_without_spills(page):
    a, c = halves(512, 512), np.zeros((512, 512), np.float16)
    heads = halves(2, 512, 64)
    with dry_run("sm_90a") as launches:
        page.matmul(a, a, c)
        page.attention(heads, heads, heads, np.zeros_like(heads), 64)
    assert all(launch.resources.spill_stores == 0 for launch in launches), launches
    assert all("HMMA.16816" in launch.artifacts["sass"] for launch in launches)
