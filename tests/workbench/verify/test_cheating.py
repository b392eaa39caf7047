"""C3: kernels that look right without being so. Each is found by the check it was written for."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest

from kiln.workbench.core.runners import Inline
from kiln.workbench.main import main
from kiln.workbench.verify import cli as verb
from kiln.workbench.verify.cheating import CHECKS

CONTRACT = """
import numpy as np
import threading
import time

{kernel}

def reference_fn(x):
    return x * 2

def get_inputs(n=32):
    return [np.random.rand(n).astype("float32")]
"""

CHEATS = {
    "inputs-unchanged": """
        def kernel_fn(x):
            out = x * 2
            x[0] = 0
            return out
    """,
    "no-view": """
        mutates = ()
        def kernel_fn(x):
            return x[:]
    """,
    "poisoned-memory": """
        def kernel_fn(x):
            return np.empty_like(x)
    """,
    "same-pointers": """
        known = {}
        def kernel_fn(x):
            if x.ctypes.data not in known:
                known.clear()
                known[x.ctypes.data] = x, x * 2
            return known[x.ctypes.data][1].copy()
    """,
    "unseen-seed": """
        known = []
        def kernel_fn(x):
            for seed in range(8):
                np.random.seed(seed)
                if np.array_equal(x, get_inputs()[0]):
                    return x * 2
            return x * 3
    """,
    "plain-arrays": """
        class Later(np.ndarray):
            pass
        def kernel_fn(x):
            return (x * 2).view(Later)
    """,
    "no-threads": """
        def kernel_fn(x):
            threading.Thread(target=time.sleep, args=(0.5,), name="goes on").start()
            return x * 2
    """,
    "honest-tools": """
        def kernel_fn(x):
            time.perf_counter = lambda: 0.0
            return x * 2
    """,
}


def cheat(name: str, path: Path) -> str:
    text = CONTRACT.format(kernel=textwrap.dedent(CHEATS[name]))
    if name == "no-view":
        text = text.replace("return x * 2", "return x + 0")
    (path / "kernel.py").write_text(text)
    return str(path / "kernel.py")


@pytest.mark.parametrize("name", CHEATS)
def test_c3_cheats_are_found(name: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # put back what the cheat changes
    kinds = "repeated" if name in ("same-pointers", "unseen-seed") else "normal"
    assert main(["verify", cheat(name, tmp_path), f"--kinds={kinds}", "--target=cpu"]) == 1
    out = capsys.readouterr().out
    assert f"{name}: " in out
    assert CHECKS[name] in out
    # It is found among all checks, too.
    status = "wrong" if name == "poisoned-memory" else "cheat"  # the kernel that forgets its output is only wrong
    assert f"FAILED {status}: {name}" in re.sub(r"FAILED +", "FAILED ", out)


def test_declared_exceptions(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    text = CONTRACT.format(kernel="mutates = [0]\ndef kernel_fn(x):\n    x *= 2")
    path = tmp_path / "kernel.py"
    path.write_text(text)
    words = ["verify", str(path), "--kinds=normal,integers,strided,repeated,deterministic", "--target=cpu"]
    assert main(words) == 0
    # The same without saying so.
    path.write_text(text.replace("mutates = [0]", "aliases = True").replace("x *= 2", "x *= 2\n    return x"))
    assert main(words) == 1
    assert "inputs-unchanged: the kernel changed input 0: its contents" in capsys.readouterr().out
    path.write_text(text.replace("mutates = [0]", ""))
    assert main(words) == 2
    assert "not None (return the output, or declare what it `mutates`)" in capsys.readouterr().err


def test_a_contract_that_rewrites_itself(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    kernel = "def kernel_fn(x):\n    open(__file__, 'a').write('# other')\n    return x * 2"
    (tmp_path / "kernel.py").write_text(CONTRACT.format(kernel=kernel))
    assert main(["verify", str(tmp_path / "kernel.py"), "--kinds=normal", "--target=cpu"]) == 1
    assert re.search(r"honest-tools: .*kernel.py changed while it ran", capsys.readouterr().out)


def test_another_type_is_one_mistake_and_no_cheat(tmp_path: Path, capsys, monkeypatch) -> None:
    """Its inputs are the same every time, and so are its results; that all kinds fail by the type is said once."""
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    text = CONTRACT.format(kernel='def kernel_fn(x):\n    return (x * 2).astype("float16")')
    text = text.replace("np.random.rand(n)", "np.arange(n)")
    (tmp_path / "kernel.py").write_text(text)
    kinds = "--kinds=normal,integers,repeated,deterministic"
    assert main(["verify", str(tmp_path / "kernel.py"), kinds, "--target=cpu"]) == 1
    out = capsys.readouterr().out
    assert "cheat" not in out and "same-pointers" not in out
    rows = [line for line in out.splitlines() if "FAILED" in line]
    assert len(rows) == 2 and rows[1].startswith("FAILED normal")
    assert re.search(r"normal +FAILED +wrong: output 0 has type float16, the reference's float32.*; the same for integers, repeated", rows[0])  # fmt: skip
    assert "\nalso " not in out


def test_results_that_stay_the_same_with_inputs_that_do_are_no_cheat(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(verb, "make_runner", lambda args: Inline())
    text = CONTRACT.format(kernel="def kernel_fn(x):\n    return x * 3").replace("np.random.rand(n)", "np.arange(n)")
    (tmp_path / "kernel.py").write_text(text)
    assert main(["verify", str(tmp_path / "kernel.py"), "--kinds=repeated", "--target=cpu"]) == 1
    assert "cheat" not in capsys.readouterr().out
