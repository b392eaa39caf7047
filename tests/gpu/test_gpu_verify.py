"""`kiln verify` on a GPU: what only a GPU can show."""

from __future__ import annotations

from pathlib import Path

from kiln.workbench.main import main
from kiln.workbench.scaffold import new

KERNEL = """
import torch
import cutlass.cute as cute

@cute.kernel
def plus_one(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 128 + thread
    y[i] = x[i] + 1.0

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    plus_one(x, y).launch(grid=cute.ceil_div(cute.size(x), 128), block=128)

def kernel_fn(x):
    y = torch.empty_like(x)
    launch(x, y)
    return y

def reference_fn(x):
    return x + 1

def get_inputs(n=1024):
    return [torch.rand(n, device="cuda")]
"""

ILLEGAL = """
    i = cute.Int64(i)
    if cute.size(x) == 2:
        i = i + (1 << 40)
    if i < cute.size(y) or cute.size(x) == 2:
        y[i] = x[i] + 1.0
"""


def verified(tmp_path: Path, text: str, *words: str) -> int:
    (tmp_path / "kernel.py").write_text(text)
    return main(["verify", str(tmp_path / "kernel.py"), *words])


def test_all_checks(tmp_path: Path, capsys) -> None:
    assert verified(tmp_path, new.contents("sums", "reduction")["kernel.py"], "--m=512", "--n=1000") == 0
    assert "  streams        ok" in capsys.readouterr().out


def test_what_is_written_beside_an_output_is_seen(tmp_path: Path, capsys) -> None:
    assert verified(tmp_path, KERNEL, "--kinds=normal", "--n=1000") == 1
    assert "the kernel wrote outside memory it was given" in capsys.readouterr().out


def test_an_illegal_access_is_a_record_and_the_next_check_has_a_gpu(tmp_path: Path, capsys) -> None:
    """G2 in small: one check leaves its process without a GPU, the next one passes."""
    text = KERNEL.replace("    launch(x, y)\n", "    launch(x[:2] if len(x) == 1023 else x, y)\n")
    text = text.replace("    y[i] = x[i] + 1.0\n", ILLEGAL)
    assert verified(tmp_path, text, "--kinds=odd,integers") == 1
    out = capsys.readouterr().out
    assert "device_error: n-1: " in out
    assert "  integers       ok" in out


def test_g7_work_on_another_stream(tmp_path: Path, capsys) -> None:
    text = KERNEL.replace("    launch(x, y)\n", "    with torch.cuda.stream(SIDE):\n        torch.add(x, 1, out=y)\n")
    assert verified(tmp_path, text.replace("import torch\n", "import torch\nSIDE = torch.cuda.Stream()\n")) == 1
    assert "stream-order: it did not wait for what the stream had to do before" in capsys.readouterr().out
