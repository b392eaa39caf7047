"""Build the distributions, and try them in empty environments: `make wheel`, `make release-check`.

    python tools/release.py build [--sign KEY]      # dist/: the sdist, the wheel made from it, an SBOM, checksums
    python tools/release.py check [PYTHON ...]      # both, checked; the wheel tried with each Python that is found
    python tools/release.py check --root FOLDER     # also in a root of Debian (debootstrap --include=python3-venv)

A check builds, reads the description as a package index would, runs tests from the unpacked sdist, and runs `tools/release_trial.py`
with the wheel in a new virtual environment of each Python, without extras. It ends with 1 if anything fails, and if no Python
could be tried. It takes some minutes and half a gigabyte for each Python; the environments are removed.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import release_files

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
VERSIONS = [f"3.{minor}" for minor in range(10, 15)]
TOOLS = ("build>=1.2", "twine>=6", "readme_renderer[md]>=44")
TESTS = ("tests/cute/layout/test_int_tuple.py", "tests/cute/tensor/test_iterators.py", "tests/base_dsl/test_options.py")
IN_SDIST = (
    "src/kiln/__init__.py",
    "tests/conftest.py",
    "tools/release.py",
    "benchmarks/results.py",
    "docs/language.md",
    "typings",
    "Makefile",
)
IN_WHEEL = ("kiln/py.typed", "kiln/__native__/calls.x86_64.o", "kiln/__native__/calls.aarch64.o", "cutlass/__init__.py")


def arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line; options may stand between the interpreters, as `make release-check` writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument(
        "pythons", nargs="*", metavar="PYTHON", help="interpreters; by default all of 3.10 to 3.14 found"
    )
    parser.add_argument("--root", help="a folder with a system of Debian, to try the wheel in by chroot")
    parser.add_argument("--sign", metavar="KEY", help="sign the checksums by GnuPG with this key")
    return parser.parse_intermixed_args(words)


def main() -> int:
    args = arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="kiln-release-") as name:
        folder = Path(name)
        python = make_environment(sys.executable, folder / "tools", *TOOLS)
        sdist, wheel = build(python)
        for each in release_files.write(DIST, sdist, wheel, args.sign):
            print(each.name)
        if args.what == "build":
            return 0
        failed = [*check_files(python, sdist, wheel), *check_sdist(sdist, wheel, folder)]
        pythons = args.pythons or found_pythons()
        failed += [] if pythons else ["no Python of 3.10 to 3.14 was found"]
        for each in pythons:
            failed += try_wheel(each, wheel, folder / "trial")
        if args.root:
            failed += try_in_root(Path(args.root), wheel)
    for each in failed:
        print(f"FAILED: {each}", file=sys.stderr)
    print(f"{wheel.name}: {'not ' if failed else ''}ready")
    return bool(failed)


def run(*command: object, **options: object) -> bool:
    print("$", *command, flush=True)
    return subprocess.run([str(each) for each in command], check=False, **options).returncode == 0  # pyright: ignore


def make_environment(python: str, folder: Path, *packages: object) -> str:
    """Make a virtual environment with some packages. Returns its Python; ends the program where that fails."""
    made = folder / "bin" / "python"
    pip = (made, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", *packages)
    if not run(python, "-m", "venv", folder) or not run(*pip):
        raise SystemExit(f"{python} cannot make an environment with {' '.join(map(str, packages))}")
    return str(made)


def build(python: str) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel, with object code for both architectures."""
    shutil.rmtree(DIST, ignore_errors=True)
    if not run(sys.executable, ROOT / "tools/native_objects.py", stdout=subprocess.DEVNULL):
        raise SystemExit("no object code for the wheel")
    if not run(python, "-m", "build", "--outdir", DIST, ROOT, stdout=subprocess.DEVNULL):
        raise SystemExit("the build failed")
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    print(*(f"{each.name}: {each.stat().st_size / 1e6:.1f} MB" for each in (sdist, wheel)), sep="\n")
    return sdist, wheel


def check_files(python: str, sdist: Path, wheel: Path) -> list[str]:
    """Look at what is in both, and at the metadata."""
    with tarfile.open(sdist) as packed, zipfile.ZipFile(wheel) as zipped:
        in_sdist = {name.partition("/")[2] for name in packed.getnames()}
        in_wheel = zipped.namelist()
        about = email.message_from_bytes(zipped.read(next(name for name in in_wheel if name.endswith("/METADATA"))))
    lacks = [name for name in IN_SDIST if not any(each == name or each.startswith(f"{name}/") for each in in_sdist)]
    wrong = [f"{sdist.name} has no {name}" for name in lacks]
    tracked = subprocess.run(
        ["git", "ls-files", "src", "tests", "tools"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    wrong += [f"{sdist.name} has no {name}" for name in tracked.stdout.split() if name not in in_sdist]
    wrong += [f"{wheel.name} has no {name}" for name in IN_WHEEL if name not in in_wheel]
    wrong += [
        f"{wheel.name} has {name}"
        for name in in_wheel
        if not re.match(r"(kiln|cutlass|cutlass-stubs|kiln_dsl-[^/]+)/", name)
    ]
    wrong += release_files.unfilled_urls(about) + release_files.wrong_sums(DIST)
    text = str(about.get_payload())
    wrong += [f"the description has the relative link {link}" for link in re.findall(r"\]\((?!https?:)[^)]*\)", text)]
    wrong += [f"the version is {about['Version']}: no release"] if re.search("dev|[+]", about["Version"]) else []
    wrong += (
        [f"CHANGELOG.md has no {about['Version']}"]
        if f"## {about['Version']} (20" not in (ROOT / "CHANGELOG.md").read_text()
        else []
    )
    wrong += [] if len(text) > 2000 else ["the description is missing"]
    wrong += (
        [] if run(python, "-m", "twine", "check", "--strict", sdist, wheel) else ["twine finds the description wrong"]
    )
    return wrong


def check_sdist(sdist: Path, wheel: Path, folder: Path) -> list[str]:
    """Run some tests from the unpacked sdist, on its own sources."""
    with tarfile.open(sdist) as packed:
        members = [each for each in packed.getmembers() if each.isfile() or each.isdir()]
        packed.extractall(folder / "sdist", members)
    (unpacked,) = (folder / "sdist").iterdir()
    python = make_environment(sys.executable, folder / "tests", wheel, "pytest>=8.3,<10", "hypothesis>=6.120,<7")
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, cwd=unpacked, env=environment())
    return [] if done else ["tests of the sdist fail"]


def environment() -> dict[str, str]:
    """The environment of a user: no Kiln on the path but the one that is installed."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "CUTE_DSL_", "PYTHON"))}


def found_pythons() -> list[str]:
    """The interpreters of 3.10 to 3.14 on the path, and those of pyenv and uv."""
    homes = [Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python"]
    pythons: list[str] = []
    for version in VERSIONS:
        others = [str(path) for home in homes for path in sorted(home.glob(f"*{version}*/bin/python{version}"))]
        on_path = shutil.which(f"python{version}")
        works = [each for each in [*others, *([on_path] if on_path else [])] if runs(each, version)]
        print(f"Python {version}: {works[0] if works else 'not found, not tried'}")
        pythons += works[:1]
    return pythons


def runs(python: str, version: str) -> bool:
    """Whether an interpreter has this version, and can make virtual environments."""
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    told = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return told.stdout.strip() == version


def try_wheel(python: str, wheel: Path, folder: Path) -> list[str]:
    """Install the wheel, without extras, in an empty environment of a Python, and use it there."""
    installed = make_environment(python, folder, wheel)
    done = run(installed, ROOT / "tools/release_trial.py", ROOT, cwd=folder, env=environment())
    shutil.rmtree(folder)
    return [] if done else [f"the trial with {python} fails"]


def try_in_root(root: Path, wheel: Path) -> list[str]:
    """Try the wheel in a system of Debian that has Python and nothing else, without a network; needs root."""
    inside = root / "kiln"
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    for each in (wheel, ROOT / "README.md", ROOT / "tools/release_trial.py"):
        shutil.copy(each, inside)
    shutil.copytree(ROOT / "examples", inside / "examples")
    version = next(path.name.removeprefix("python") for path in (root / "usr/bin").glob("python3.*[0-9]"))
    wanted = ("--only-binary=:all:", "--python-version", version, "-d", inside / "wheels", wheel)
    if not run(sys.executable, "-m", "pip", "download", "-qq", *wanted):
        return [f"no wheels for Python {version}"]
    commands = (
        "mount -t proc proc /proc",
        "cd /kiln",
        "python3 -m venv env",
        f"env/bin/python -m pip install -qq --no-compile --no-index --find-links wheels {wheel.name}",
        "env/bin/python release_trial.py /kiln",
    )
    plain = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    done = run("unshare", "--mount", "chroot", root, "/bin/sh", "-c", " && ".join(commands), env=plain)
    return [] if done else [f"the trial in {root} fails"]


if __name__ == "__main__":
    sys.exit(main())
