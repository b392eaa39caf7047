"""`kiln doctor`: shows what this machine has for Kiln, what is missing, what that means, and how to get it.

The exit status is 0 if the CPU target works, which is proved by compiling and running a function with it. Everything
else is optional: its absence is reported, not counted as a failure. `--project` is in `doctor_project.py`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import kiln
from kiln import DSLRuntimeError, _alias, tunings
from kiln.base_dsl import packages
from kiln.base_dsl.target import target_names
from kiln.hardware import devices, toolchain
from kiln.workbench.core import environment, tuned_file
from kiln.workbench.core.options import Parser

PROBE_ANSWER = "42"
"""The output of `kiln.workbench.doctor_probe` if the compiler works."""
_PROBE_SECONDS = 120


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state` is "ok", "missing" (something optional is not there) or "broken"."""

    group: str
    name: str
    state: str
    value: str
    meaning: str = ""
    """The consequence for the user if something is missing or broken."""
    remedy: str = ""
    """How to fix it, a command if there is one."""


def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    if args.project is not None:
        from kiln.workbench import doctor_project  # it loads all of `cutlass` that the project names

        return doctor_project.run(args)
    findings = examine()
    works = any((finding.group, finding.name, finding.state) == ("targets", "cpu", "ok") for finding in findings)
    if args.json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        show(findings)
    return 0 if works else 1


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kiln doctor",
        description="Say what this machine has for Kiln, and how to get what is missing. "
        "The exit status is 0 if the CPU target works. With --project: say what of `cutlass` a code base uses that "
        "Kiln lacks; the exit status is 0 if that is nothing.",
    )
    parser.add_argument(
        "--project",
        metavar="DIR",
        help="read the Python files below a folder, without importing them: names, paths and arguments that Kiln lacks, "
        "internals that they replace, versions that they ask for, architectures",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="with --project: leave out folders, such as third_party or data/cutlass",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def examine() -> list[Finding]:
    """Return all findings, in the order they are shown."""
    driver = environment.cuda_driver()
    return [
        *_versions(),
        *_targets(driver),
        *_tools(),
        *_chips(),
        *_gpus(driver),
        *_optional(),
        *_torch(),
        _cache(),
        *_tuned(),
        *_cutlass(),
    ]


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "python", "ok", f"{platform.python_version()} on {platform.machine()}, {sys.executable}")
    yield Finding("versions", "kiln", "ok", f"{kiln.__version__}, {_root() / 'kiln'}")
    yield _package("MLIR bindings", "kiln.mlir", "torch-mlir", "nothing can be compiled")
    yield _package("llvmlite", "llvmlite.binding", "llvmlite", "nothing can be compiled")
    yield _package("numpy", "numpy", "numpy", "arrays on the host cannot be used")
    yield _package("ml_dtypes", "ml_dtypes", "ml_dtypes", "narrow float types cannot be used on the host")


def _package(name: str, module: str, distribution: str, meaning: str) -> Finding:
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # an incompatible native library may raise anything
        return Finding("versions", name, "broken", str(error), meaning, f"pip install '{requirement(distribution)}'")
    try:
        value = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        value = "version unknown, not installed by pip"
    if module == "llvmlite.binding":
        value += ", LLVM " + ".".join(map(str, imported.llvm_version_info))
    return Finding("versions", name, "ok", value)


def requirement(distribution: str) -> str:
    """Return Kiln's requirement of a distribution, such as "llvmlite<0.52,>=0.50"; the bare name if it is unknown."""

    def normal(name: str) -> str:
        return name.lower().replace("_", "-")

    try:
        requirements = metadata.requires("kiln-dsl") or []
    except metadata.PackageNotFoundError:
        requirements = []
    for text in requirements:
        plain = text.partition(";")[0].strip()
        rest = normal(plain).removeprefix(normal(distribution))
        if rest != normal(plain) and (not rest or rest[0] in "<>=!~ ["):
            return plain
    return distribution


def _targets(driver: environment.Driver) -> Iterator[Finding]:
    yield _cpu_target()
    only_cpu = (
        "kernels run on the CPU target only; `kiln run --target cpu PROGRAM` serves a program that asks for "
        'device="cuda", too'
    )
    if "nvidia" not in target_names():
        yield Finding("targets", "nvidia", "missing", "not in this version of Kiln", only_cpu)
    elif not _is_here("ptxas") and not driver.gpus:  # a GPU's driver can compile
        yield Finding("targets", "nvidia", "missing", "no ptxas", only_cpu, _pip_for("ptxas"))
    elif not driver.gpus:
        why = driver.problem or "the driver shows no GPU"
        yield Finding("targets", "nvidia", "missing", f"compiles, cannot run: {why}", only_cpu)
    else:
        yield Finding("targets", "nvidia", "ok", ", ".join(f"{one.name} ({one.arch})" for one in driver.gpus))


def _cpu_target() -> Finding:
    """Compile and run a function in a process of its own, since a broken native library may end the process."""
    meaning = "kernels cannot be compiled and run on this machine"
    if not _exists("kiln.cute"):
        return Finding("targets", "cpu", "broken", "this copy of Kiln has no compiler (no kiln.cute)", meaning)
    start = time.perf_counter()
    try:
        done = _run("kiln.workbench.doctor_probe")
    except subprocess.TimeoutExpired:
        return Finding("targets", "cpu", "broken", f"a tiny function did not finish in {_PROBE_SECONDS} s", meaning)
    seconds = time.perf_counter() - start
    if done.returncode == 0 and done.stdout.split() == [PROBE_ANSWER]:
        return Finding("targets", "cpu", "ok", f"compiled and ran a function in {seconds:.1f} s, start-up included")
    said = (done.stderr or done.stdout).strip().splitlines()
    why = said[-1] if said else f"exit status {done.returncode}"
    remedy = f"{sys.executable} -m kiln.workbench.doctor_probe, to see the whole error"
    return Finding("targets", "cpu", "broken", f"a tiny function does not run: {why}", meaning, remedy)


def _run(module: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Kiln in a separate process."""
    path = os.pathsep.join(filter(None, [str(_root()), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", module],
        env=dict(os.environ, KILN_TARGET="cpu", PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=_PROBE_SECONDS,
        check=False,
    )


_OPTIONAL = {
    "torch": ("torch", "tensors as arguments, operators, kiln.nn, and the templates for GPUs"),
    "jax": ("jax", "kernels as functions of JAX, with jit, grad and vmap"),
    "apache-tvm-ffi": ("tvm_ffi", "functions and tensors of TVM-FFI"),
    "plotly": ("plotly", "figures of `kiln report`"),
    "ncu-report": ("ncu_report", "hardware counters in `kiln profile --prof-type ncu`"),
    "nvtx": ("nvtx", "named ranges in time lines of nsys"),
    "optuna": ("optuna", "`kiln tune --search tpe`"),
    "ray": ("ray", "`--ray`: verify and tune on several machines"),
    "PyYAML": ("yaml", "`kiln kb check`, `new` and `index`; tasks of GPU MODE in `kiln import`"),
    "rich-argparse": ("rich_argparse", "colours in `kiln VERB --help`"),
    "shtab": ("shtab", "`kiln completion`"),
}
"""Optional packages: their modules, and what they are for."""


def _optional() -> Iterator[Finding]:
    for distribution, (module, purpose) in _OPTIONAL.items():
        if not packages.is_here(module):
            remedy = f"pip install '{requirement(distribution)}'"
            yield Finding("optional", distribution, "missing", "not installed", f"it is for {purpose}", remedy)
            continue
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            version = "version unknown"
        yield Finding("optional", distribution, "ok", f"{version}, for {purpose}")


def _torch() -> Iterator[Finding]:
    """Report which internals of PyTorch native code cannot use; a separate process tries them."""
    if not packages.is_here("torch"):
        return
    remedy = f"{sys.executable} -m kiln.interop.torch.probe, to see the whole error"
    try:
        done = _run("kiln.interop.torch.probe")
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        meaning = "tensors and operators of PyTorch may be slow, or not work"
        yield Finding("torch", "internals", "missing", "they could not be looked at", meaning, remedy)
        return
    if not report["without"]:
        yield Finding("torch", "internals", "ok", f"torch {report['torch']}: all that native code uses is as expected")
    for name, why in report["without"].items():
        newest = packages.TRIED["torch"][1]
        without = packages.INTERNALS[name].without
        tried = f"torch up to {newest} was tried"
        yield Finding("torch", name, "missing", why, without, tried)


_WITHOUT_TOOL = {
    "ptxas": "the driver compiles code for NVIDIA GPUs, and there are no cubins, no SASS, no counts of registers",
    "nvdisasm": "SASS cannot be shown",
}


def _is_here(tool: str) -> bool:
    try:
        return toolchain.find(tool) is not None
    except DSLRuntimeError:  # `_tools` reports it
        return False


def _tools() -> Iterator[Finding]:
    for name in toolchain.TOOLS:
        try:
            tool = toolchain.find(name)
        except DSLRuntimeError as wrong:
            remedy = "unset it, or name a program"
            yield Finding("toolchain", name, "broken", wrong.message, _WITHOUT_TOOL[name], remedy)
            continue
        if tool is None:
            where = "not in a wheel, CUDA_HOME or PATH"
            yield Finding("toolchain", name, "missing", where, _WITHOUT_TOOL[name], _pip_for(name))
        else:
            version = tool.version() or "version unknown"
            yield Finding("toolchain", name, "ok", f"{version}, from {tool.origin}, {tool.path}")


def _chips() -> Iterator[Finding]:
    """Yield which GPUs of the table ptxas compiles for: an architecture needs the PTX version that it came with."""
    tool = toolchain.find("ptxas") if _is_here("ptxas") else None
    version = tool.version() if tool else None
    if version is None:
        return
    newest = toolchain.newest_ptx_of(version)
    chips = {name: model for model in reversed(devices.models().values()) for name in model.architectures}
    by_generation = sorted(chips.items(), key=lambda item: item[1].generation.number)
    lacking = [f"{model.name} ({name})" for name, model in by_generation if model.generation.ptx > newest]
    if lacking:
        value = f"ptxas of CUDA {version} compiles for none of these: {', '.join(lacking)}"
        yield Finding("toolchain", "chips", "missing", value, "their cubins need a newer ptxas", _pip_for("ptxas"))
    else:
        yield Finding("toolchain", "chips", "ok", ", ".join(f"{model.name} ({name})" for name, model in by_generation))


def _pip_for(tool: str) -> str:
    package = requirement(toolchain.TOOLS[tool][1])
    return f"pip install '{package}'"


def _gpus(driver: environment.Driver) -> Iterator[Finding]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    unhide = f"unset CUDA_VISIBLE_DEVICES, which is {visible!r}" if visible is not None else ""
    if driver.problem is not None:
        remedy = "install NVIDIA's driver" if driver.version is None else unhide
        yield Finding("gpu", "driver", "missing", driver.problem, "no NVIDIA GPU can be used", remedy)
        return
    yield Finding("gpu", "driver", "ok", f"{driver.version or 'version unknown'}, CUDA {driver.cuda}")
    for ordinal, one in enumerate(driver.gpus):
        value = f"{one.name}, {one.arch}, {one.sm_count} SMs, {one.memory / 2**30:.0f} GiB"
        yield Finding("gpu", f"device {ordinal}", "ok", value)
    if not driver.gpus:
        yield Finding("gpu", "devices", "missing", "none", "no NVIDIA GPU can be used", unhide)
    if not _exists("cuda.bindings"):
        remedy = f"pip install '{requirement('cuda-bindings')}'"
        meaning = "kernels cannot be launched on the GPU"
        yield Finding("gpu", "cuda-bindings", "missing", "not installed", meaning, remedy)


def _tuned(most: int = 32) -> Iterator[Finding]:
    """Yield findings about `tuned.json` in the current folder and two levels below."""
    files = [file for depth in ("", "*/", "*/*/") for file in sorted(Path.cwd().glob(f"{depth}{tunings.FILE}"))]
    for file in files[:most]:
        entries = tunings.read(file)
        name = str(file.relative_to(Path.cwd()))
        old = [(entry, why) for entry in entries if (why := tuned_file.stale(entry, file.parent))]
        if not old:
            yield Finding("tuned", name, "ok", f"{len(entries)} entries")
            continue
        gpus = {str(entry["gpu"]) for entry, _ in old}
        if not gpus & {str(tuned_file.environment()["gpu"] or "cpu")}:  # nobody can measure them here
            yield Finding(
                "tuned", name, "ok", f"{len(entries)} entries, for GPUs that are not here: {', '.join(sorted(gpus))}"
            )
            continue
        first, why = old[0]
        which = f"{first['file']} {tunings.canonical(first['problem'])}"
        said = f"{len(old)} of {len(entries)} entries are stale: {which}: {why[0]}"
        remedy = f"kiln tune {file.with_name(first['file']).relative_to(Path.cwd())} --problem all"
        yield Finding("tuned", name, "missing", said, "another config may be the fastest by now", remedy)


def _cache() -> Finding:
    try:
        from kiln.base_dsl import cache, cache_folder, settings

        name = settings.get("CUTE_DSL_CACHE_DIR")
        why = cache_folder.unusable(name)
    except Exception as error:  # this command reports broken installations
        return Finding("cache", "compiled code", "broken", str(error), "there is no cache without a compiler")
    if why is not None:
        remedy = "set CUTE_DSL_CACHE_DIR to a directory that you alone can write to"
        return Finding("cache", "compiled code", "missing", why, "every process compiles anew", remedy)
    sizes = [status.st_size for _, status in cache.entries(name)]
    return Finding("cache", "compiled code", "ok", f"{len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB, {name}")


def _cutlass() -> Iterator[Finding]:
    """Yield findings about who provides `cutlass` to a plain `python prog.py`."""
    own = Path(_alias.own_package()) / "__init__.py"
    rivals = _alias.rivals()
    winner = next((str(rival) for rival in rivals if rival.wins), None)
    if winner is None and own.is_file() and _alias.is_ours(str(own)):
        yield Finding("cutlass", "import cutlass", "ok", f"gives Kiln, {own.parent}")
    else:
        value = f"gives another package: {winner or 'Kiln has no alias here'}"
        remedy = "keep one of the two in this environment, or start programs with `kiln run`"
        meaning = "programs do not run on Kiln by themselves"
        yield Finding("cutlass", "import cutlass", "missing", value, meaning, remedy)
    for rival in rivals:
        if not rival.wins:
            meaning = "it is shadowed by Kiln's alias, and what needs it will not find it"
            remedy = "keep one of the two in this environment"
            yield Finding("cutlass", "another cutlass", "missing", str(rival), meaning, remedy)


def _root() -> Path:
    """Return the folder that holds the package `kiln`."""
    return Path(_alias.own_package()).parent


def _exists(module: str) -> bool:
    """Return whether a module can be imported; folders such as `cuda` and `nvidia` have no file, their modules have."""
    return packages.is_here(module)


_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


def show(findings: Sequence[Finding]) -> None:
    """Print the report as a table; as plain lines without `rich`, and where it is piped: paths stay whole there."""
    rows: list[tuple[str, str, str, str]] = []
    for one in findings:
        named = any(earlier.group == one.group for earlier in findings[: len(rows)])
        rows.append(("" if named else one.group, one.state, one.name, _text(one)))
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        plain = not Console().is_terminal
    except ModuleNotFoundError:
        plain = True
    if plain:
        wide = max(16, *(len(name) + 2 for _, _, name, _ in rows))
        for group, state, name, text in rows:
            print(f"{group:<10} {state:<8} {name:<{wide}}{text}".replace("\n", "\n" + " " * (20 + wide)))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for group, state, name, text in rows:
        table.add_row(Text(group, style="bold"), Text(state, style=_COLOURS[state]), name, Text(text, overflow="fold"))
    Console(highlight=False).print(table)


def _text(finding: Finding) -> str:
    consequence = f"{finding.meaning}." if finding.meaning else ""
    advice = f"Try: {finding.remedy}" if finding.remedy else ""
    return "\n".join(filter(None, [finding.value, " ".join(filter(None, [consequence, advice]))]))
