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


def _needs_torch(program: Path) -> bool:
    return importlib.util.find_spec("torch") is None and "\nimport torch" in program.read_text()


class Step:
    """A command, and a pattern of what it prints; with `makes`, a file that it leaves behind."""

    def __init__(self, name: str, *command: str, prints: str = "", makes: str = "") -> None:
        self.name, self.command, self.prints, self.makes = name, command, prints, makes

    def failure(self, folder: Path) -> str:
        """Run it. Returns what is wrong, or nothing."""
        done = subprocess.run(self.command, check=False, cwd=folder, capture_output=True, text=True, timeout=1200)
        text = done.stdout + done.stderr
        if done.returncode == NOT_HERE and self.makes.endswith("kernel.py") and _needs_torch(folder / self.makes):
            return "" if "pip install torch" in text else f"does not say that torch is missing\n{text[-2000:]}"
        if done.returncode:
            return f"exit status {done.returncode}\n{text[-2000:]}"
        if not re.search(self.prints, text):
            return f"prints no {self.prints!r}\n{text[-2000:]}"
        made = folder / self.makes
        return "" if made.exists() and (made.is_dir() or made.stat().st_size) else f"makes no {self.makes}"


def steps(source: Path) -> list[Step]:
    """Return all steps; `source` has README.md and examples/."""
    python, kiln = sys.executable, str(Path(sys.executable).parent / "kiln")
    first = re.findall(r"```python\n(import kiln.*?)```", (source / "README.md").read_text(), re.DOTALL)[0]
    Path("prog.py").write_text(first)
    return [
        Step("object code", python, "-c", OBJECTS, prints="x86_64"),
        Step("version", kiln, "version", prints=r"kiln \d+\.\d+\.\d+"),
        Step("doctor", kiln, "doctor", prints="cpu"),
        Step("first kernel of README.md", python, "prog.py", prints="."),
        Step("alias", python, "-c", ALIAS, prints=r"\(4,8\):\(1,4\)"),
        Step("run", kiln, "run", "--target", "cpu", "prog.py", prints="."),
        Step("sanitize", kiln, "run", "--target", "cpu", "--sanitize", "prog.py", prints="."),
        Step("tour", kiln, "tour", prints="race"),
        Step("draw", kiln, "draw", "(4,8):(8,1)", "-o", "layout.svg", makes="layout.svg"),
        Step("inspect", kiln, "inspect", "prog.py", "--html", "page.html", makes="page.html"),
        Step("kb search", kiln, "kb", "search", "vectorized loads", prints="Vectorized 16-byte accesses"),
        Step("kb search race", kiln, "kb", "search", "race condition", prints="Shared memory without a barrier"),
        *(Step(f"new {kind}", kiln, "new", f"my_{kind}", "--kind", kind, makes=f"my_{kind}/kernel.py") for kind in KINDS),
        *(
            Step(f"example {name}", python, str(source / "examples" / name), prints=".")
            for name in ("hello_world.py", "stages.py")
        ),
    ]  # fmt: skip


def main() -> int:
    source = Path(sys.argv[1]).resolve()
    os.environ.update(KILN_TARGET="cpu", CUTE_DSL_CACHE_DIR=tempfile.mkdtemp(), PYTHONSAFEPATH="1")
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    failed: list[str] = []
    tried = steps(source)
    verbs = set(re.findall(r"`kiln ([a-z]+)", (source / "README.md").read_text()))
    untried = (
        verbs - {step.command[1] for step in tried} - {"verify", "bench", "tune", "profile"}
    )  # `kiln new` verifies; a GPU for the others
    if untried:
        failed.append(f"README.md has commands that are not tried: {', '.join(sorted(untried))}")
    if importlib.util.find_spec("torch") is not None:
        tried.append(Step("verify", tried[1].command[0], "verify", "my_elementwise/kernel.py", "--quick", prints="."))
    for step in tried:
        start = time.perf_counter()
        wrong = step.failure(folder)
        print(f"  {'FAILED' if wrong else 'ok'}  {step.name} ({time.perf_counter() - start:.1f} s)", flush=True)
        if wrong:
            failed.append(f"{step.name}: {wrong}")
    print("\n".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
