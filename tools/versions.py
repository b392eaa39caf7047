"""Try the bridges with the oldest and the newest versions of other packages that have wheels for this Python.

    make test STAGE=versions
    python tools/versions.py newest --small    # one of the two; only a small program

Each of the two has a virtual environment of its own, `.venv/versions/oldest` and `newest`. The oldest versions are from the bounds of
pyproject.toml on; the newest are those of the package index, also where they are beyond a bound, which can be raised then. What was tried last is
`TRIED` of src/kiln/base_dsl/packages.py. PyTorch's build for the CPU is taken where an index has it; a plain one may bring gigabytes of CUDA.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".venv" / "versions"
WHICH = ("oldest", "newest")
PACKAGES = ("torch", "jax", "numpy", "apache-tvm-ffi")
BESIDES = ("pytest>=8.3,<10", "hypothesis>=6.120,<7", "mpmath>=1.3,<2", "flatbuffers", "absl-py")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TESTS = (
    "tests/base_dsl/test_packages.py",
    "tests/interop/torch",
    "tests/interop/jax",
    "tests/interop/tvm_ffi",
    "tests/interop/test_conventions_agree.py",
    "tests/interop/test_other_versions.py",
    "tests/interop/test_without_packages.py",
    "tests/interop/aot/test_exported_conventions.py",
    "tests/cute/host",
    "tests/test_nn.py",
    "tests/workbench/serve_cuda",
)
_SPACE = 12 << 30
SMALL = ROOT / "tests" / "helpers" / "small_bridges.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="oldest|newest", help="both if none is named")
    parser.add_argument("--small", action="store_true", help="import every package and make a call with each, no more")
    args = parser.parse_args()
    if unknown := [each for each in args.which if each not in WHICH]:
        parser.error(f"{unknown[0]} is neither oldest nor newest")
    failed: list[str] = []
    for which in args.which or WHICH:
        python = prepare(which)
        told = subprocess.run(
            [python, SMALL, "--versions"], check=False, capture_output=True, text=True, env=environment()
        )
        print(f"== {which}: {told.stdout.strip() or told.stderr.strip()}", flush=True)
        tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        command = [python, SMALL] if args.small else [python, *tests]
        if subprocess.run(command, check=False, cwd=ROOT, env=environment()).returncode:
            failed.append(which)
    if failed:
        print(f"failed with the {' and the '.join(failed)} versions", file=sys.stderr)
    return bool(failed)


def environment() -> dict[str, str]:
    """Kiln is taken from this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KILN_TARGET": os.environ.get("KILN_TARGET", "cpu")}


def prepare(which: str) -> str:
    """The Python of an environment, which is made where it is not there or versions are others now."""
    folder = PLACE / which
    python = str(folder / "bin" / "python")
    versions = {name: choose(name, which) for name in PACKAGES}
    wanted = "\n".join([sys.version, *(f"{name}=={version}" for name, version in versions.items()), *dependencies()])
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    if shutil.disk_usage(ROOT).free < _SPACE:
        give_up(f"{_SPACE >> 30} GB of disk are needed for an environment with PyTorch")
    print(f"== making {folder.relative_to(ROOT)}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    torch = versions.pop("torch")
    rest = [f"{name}=={version}" for name, version in versions.items()]
    cpu = install(python, f"torch=={torch}+cpu", "--extra-index-url", TORCH_INDEX, quietly=True)
    if not cpu and not install(python, f"torch=={torch}"):
        give_up(f"torch {torch} cannot be installed")
    if not install(python, *rest, *dependencies(), *BESIDES):
        give_up(f"{' '.join(rest)} cannot be installed")
    stamp.write_text(wanted)
    return python


def give_up(reason: str) -> NoReturn:
    """End with 3: nothing was tried."""
    print(reason, file=sys.stderr)
    raise SystemExit(3)


def install(python: str, *what: str, quietly: bool = False) -> bool:
    command = [python, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", *what]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL if quietly else None).returncode == 0


def choose(name: str, which: str) -> str:
    """The oldest version within Kiln's bounds, or the newest of all, that has a wheel for this Python."""
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--only-binary", ":all:"]
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.search(r"Available versions: (.*)", told.stdout)
    if found is None:
        give_up(f"pip does not tell the versions of {name}: {told.stderr.strip()}")
    known = [each.strip() for each in found[1].split(",")]
    plain = sorted((each for each in known if re.fullmatch(r"[\d.]+(\.post\d+)?", each)), key=numbers)
    least = next(each for each in requirements() if re.match(rf"{re.escape(name)}\s*>=", each))
    oldest = numbers(re.split(r"[>=,<]+", least)[1])
    return plain[-1] if which == "newest" else next(each for each in plain if numbers(each) >= oldest)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def requirements() -> list[str]:
    """All that pyproject.toml asks for; Python 3.10 has no reader of TOML."""
    return re.findall(r'"([A-Za-z][\w.-]*\s*[><=][^"]*)"', (ROOT / "pyproject.toml").read_text())


def dependencies() -> list[str]:
    """What Kiln cannot do without, but for what is chosen."""
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("\ndependencies = [") : text.index("[project.optional-dependencies]")]
    found = re.findall(r'^    "([^"]+)"', block, re.MULTILINE)
    return [each for each in found if re.split(r"[><=]", each)[0] not in PACKAGES]


if __name__ == "__main__":
    sys.exit(main())
