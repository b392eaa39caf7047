"""Try an installed Kiln as a new user would: README's commands, templates, the knowledge base, examples.

    python tools/release_trial.py FOLDER    # with the Python that has Kiln; FOLDER has README.md and examples/

It needs nothing but that Python, works in an empty folder on the CPU target, prints a line for each step, and ends with 1
if one fails. `tools/release.py` calls it in each environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("elementwise", "reduction", "gemm", "attention", "plan", "empty")
OBJECTS = """
import os
from kiln.targets.host import native_objects
names = [name.split(".")[:2] for name in os.listdir(native_objects.FOLDER) if name.endswith(".o")]
stale = [name for name in names if native_objects.kept(*name) is None]
counts = {arch: sum(one == arch for _, one in names) for arch in native_objects.COMMON}
assert not stale and min(counts.values()) >= 20 and len(set(counts.values())) == 1, (stale, counts)
print(counts)
"""
ALIAS = "import cutlass, cutlass.cute as cute, kiln; assert cutlass.cute is kiln.cute; print(cute.make_layout((4, 8)))"


NOT_HERE = 3
"""The exit status of verbs that need a package or a device which is not there."""


NEED_MORE = {"verify", "bench", "tune", "profile"}
"""Verbs that need torch or a GPU; `kiln new` verifies what it makes."""


def _needs_torch(program: Path) -> bool:
    return importlib.util.find_spec("torch") is None and "\nimport torch" in program.read_text()


class Step:
    """A command, a pattern of what it prints, and its exit status; with `makes`, a file that it leaves behind."""

    def __init__(self, name: str, *command: str, prints: str = "", makes: str = "", status: int = 0) -> None:
        self.name, self.command, self.prints, self.makes, self.status = name, command, prints, makes, status

    def failure(self, folder: Path) -> str:
        """Run it. Returns what is wrong, or nothing."""
        done = subprocess.run(self.command, check=False, cwd=folder, capture_output=True, text=True, timeout=1200)
        text = done.stdout + done.stderr
        if done.returncode == NOT_HERE and self.makes.endswith("kernel.py") and _needs_torch(folder / self.makes):
            return "" if "pip install torch" in text else f"does not say that torch is missing\n{text[-2000:]}"
        if done.returncode != self.status:
            return f"exit status {done.returncode}\n{text[-2000:]}"
        if not re.search(self.prints, text):
            return f"prints no {self.prints!r}\n{text[-2000:]}"
        made = folder / self.makes
        return "" if made.exists() and (made.is_dir() or made.stat().st_size) else f"makes no {self.makes}"


def steps(source: Path) -> list[Step]:
    """Return all steps; `source` has README.md and examples/."""
    python, kiln = sys.executable, str(Path(sys.executable).parent / "kiln")
    first = re.findall(r"```python\n(.*?)```", (source / "README.md").read_text(), re.DOTALL)[0]
    Path("race.py").write_text(first)
    hello = str(source / "examples" / "hello_world.py")
    return [
        Step("object code", python, "-c", OBJECTS, prints="x86_64"),
        Step("version", kiln, "version", prints=r"kiln \d+\.\d+\.\d+"),
        Step("doctor", kiln, "doctor", prints="cpu"),
        Step("first kernel of README.md", python, "race.py", prints="race in kernel subtract_first", status=1),
        Step("alias", python, "-c", ALIAS, prints=r"\(4,8\):\(1,4\)"),
        Step("run", kiln, "run", "--target", "cpu", hello, prints="Hello"),
        Step("sanitize", kiln, "run", "--target", "cpu", "--sanitize", hello, prints="Hello"),
        Step("tour", kiln, "tour", prints="race"),
        Step("draw", kiln, "draw", "(4,8):(8,1)", "-o", "layout.svg", makes="layout.svg"),
        Step("inspect", kiln, "inspect", hello, "--html", "page.html", makes="page.html"),
        Step("kb search", kiln, "kb", "search", "vectorized loads", prints=r"\A\S*/sixteen-byte-accesses\.md:"),
        Step("kb search race", kiln, "kb", "search", "race condition", prints=r"\A\S*/missing-barrier\.md:"),
        *(
            Step(f"new {kind}", kiln, "new", f"my_{kind}", "--kind", kind, makes=f"my_{kind}/kernel.py")
            for kind in KINDS
        ),
        *(
            Step(f"example {name}", python, str(source / "examples" / name), prints=".")
            for name in ("hello_world.py", "stages.py")
        ),
    ]


def main() -> int:
    source = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        os.environ.update(KILN_TARGET="cpu", CUTE_DSL_CACHE_DIR=cache, PYTHONSAFEPATH="1")
        os.chdir(folder)
        failed = failures(source, Path(folder))
        os.chdir(source)
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


def failures(source: Path, folder: Path) -> list[str]:
    """Run all steps in a folder. Returns what is wrong."""
    failed: list[str] = []
    tried = steps(source)
    if importlib.util.find_spec("torch") is not None:
        tried.append(Step("verify", tried[1].command[0], "verify", "my_elementwise/kernel.py", "--quick", prints="."))
    verbs = set(re.findall(r"`kiln ([a-z]+)", (source / "README.md").read_text()))
    untried = verbs - {step.command[1] for step in tried} - NEED_MORE
    if untried:
        failed.append(f"README.md has commands that are not tried: {', '.join(sorted(untried))}")
    for step in tried:
        start = time.perf_counter()
        wrong = step.failure(folder)
        print(f"  {'FAILED' if wrong else 'ok'}  {step.name} ({time.perf_counter() - start:.1f} s)", flush=True)
        if wrong:
            failed.append(f"{step.name}: {wrong}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
