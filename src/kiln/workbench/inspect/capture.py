"""Compiles a program or a Case in a separate process and keeps everything that the compiler makes of its kernels.

Nothing is launched (a dry run), so no GPU is needed; what the program computes from results is therefore wrong, and an
error after its kernels were compiled is only noted. A second run on the CPU target finds bank conflicts and runs the
sanitizer.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kiln import _alias

from ...base_dsl.compiler import Compilation, Watcher, watchers
from ...base_dsl.target import target
from ...experimental.task_scheduling import task_manager
from ...hardware import toolchain
from .. import run, serve_cuda
from ..core import command_line, loading
from ..core.runners import child_environment
from ..verify import jobs as verify_jobs


@dataclasses.dataclass
class Subject:
    """The program to inspect, as the words of its command line, or a Case with a problem and a config."""

    program: list[str] = dataclasses.field(default_factory=list)
    case: str = ""
    problem: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`number`, and in `set` other values for fields."""
    config: str | None = None
    """A number of the Case's configs, JSON, or `tuned`."""

    @property
    def name(self) -> str:
        return os.path.basename(self.case or next((word for word in self.program if word != "-m"), "program"))


@dataclasses.dataclass
class Compiled:
    """One compiled jit function: its text after every stage, and its kernels."""

    entry: str
    arch: str
    states: list[tuple[str, str]]
    """The module of its kernels with locations: as traced (with the host's function), then after each pass."""
    llvm: str
    ptx: str
    sass: str
    live: str
    """SASS with the numbers of live registers."""
    kernels: list[dict[str, Any]]
    """Name, file, line and resources of each kernel."""


@dataclasses.dataclass
class Captured:
    """The compiled functions and launches of a subject's run."""

    compiled: list[Compiled]
    launches: list[dict[str, Any]]
    failure: str = ""
    """The error that the program ended with."""
    ptxas: str = ""
    config: Any = None
    """The config of a Case."""
    accesses: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    """Accesses to shared memory, as the CPU target counted them."""
    findings: list[dict[str, Any]] = dataclasses.field(default_factory=list[dict[str, Any]])
    """Findings of the sanitizer."""
    tasks: list[str] = dataclasses.field(default_factory=list[str])
    """Pictures of the task schedules of its kernels, SVG documents."""
    unobserved: str = ""
    """Why `accesses` and `findings` are missing."""


class _Recorder(Watcher):
    def __init__(self, sass: bool) -> None:
        self.compiled: list[Compiled] = []
        self._sass = sass
        self._states: list[tuple[Compilation, str, str]] = []

    def state(self, compilation: Compilation, name: str) -> None:
        if name == "traced":
            self._states.clear()
        self._states.append((compilation, name, compilation.module.operation.get_asm(enable_debug_info=True)))

    def finished(self, entry: str, executable: Any) -> None:
        states = self._states
        self._states = []
        if "ptx" not in executable.artifacts or not states:
            return
        host = states[0][0]  # its later passes are about the host's function
        mine = [state for state in states if state[0].name == host.name]  # the others are parts of the runtime
        captured = [(name, text) for number, (of, name, text) in enumerate(mine) if not number or of is not host]
        artifacts = executable.artifacts
        cubin = artifacts.get("cubin")
        sass = ""
        live = ""
        if cubin and self._sass and toolchain.find("nvdisasm"):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:  # runs nvdisasm twice at a time
                counting = pool.submit(live_registers, cubin)
                sass = artifacts["sass"]
                live = counting.result()
        plain = {
            info.name: {"name": info.name, "file": info.file, "line": info.line} for info in executable.code.kernels
        }
        kernels = list(plain.values())
        if used := {name: executable.resources[name] for name in plain if name in executable.resources}:
            smem = {name: {"smem": each.static_smem, "dynamic": each.dynamic_smem} for name, each in used.items()}
            kernels = [{**plain[name], **dataclasses.asdict(each), **smem[name]} for name, each in used.items()]
        for kernel in kernels:
            kernel |= static_launch(artifacts["ptx"], kernel["name"])
        arch = executable.code.arch.name
        self.compiled.append(Compiled(entry, arch, captured, artifacts["llvm"], artifacts["ptx"], sass, live, kernels))


def static_launch(ptx: str, kernel: str) -> dict[str, list[int]]:
    """Return the extents of a kernel's blocks and clusters that PTX states, where they are compiled in."""
    head = re.search(rf"\.entry {re.escape(kernel)}\(.*?\{{", ptx, re.DOTALL)
    matches = {
        name: re.search(rf"\.{directive} (\d+), (\d+), (\d+)", head.group() if head else "")
        for name, directive in (("block", "reqntid"), ("cluster", "reqnctapercluster"))
    }
    return {name: [int(extent) for extent in match.groups()] for name, match in matches.items() if match}


def live_registers(cubin: bytes) -> str:
    """Return the SASS with the number of live registers at each instruction; "" if nvdisasm cannot."""
    tool = toolchain.find("nvdisasm")
    assert tool is not None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool.path), "-c", "-plr", "-lrm", "count", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if not done.returncode else ""


@contextlib.contextmanager
def capturing(sass: bool = True) -> Iterator[Captured]:
    """While open, compile calls for the NVIDIA target, launch nothing, and keep what is compiled."""
    recorder = _Recorder(sass)
    tool = toolchain.find("ptxas")
    captured = Captured(recorder.compiled, [], ptxas=(tool.version() or "") if tool else "")
    watchers.append(recorder)
    draw = lambda manager: captured.tasks.append(manager.picture())
    task_manager.watchers.append(draw)
    try:
        with target("nvidia") as chosen, chosen.dry_run() as launches:
            yield captured
    finally:
        watchers.remove(recorder)
        task_manager.watchers.remove(draw)
        names = ("kernel", "arch", "grid", "block", "cluster", "smem")
        captured.launches += [{name: getattr(one, name) for name in names} for one in launches]


# --- the process -----------------------------------------------------------------------------------------------------


def compile_subject(subject: Subject, arch: str = "", sass: bool = True, timeout: float = 600.0) -> Captured:
    """Run a subject in a process of its own, which compiles for an architecture and launches nothing."""
    variables = {"KILN_TARGET": "nvidia", "CUTE_DSL_LINEINFO": "1"} | ({"CUTE_DSL_ARCH": arch} if arch else {})
    with tempfile.TemporaryDirectory(prefix="kiln-") as folder:
        out = Path(folder) / "captured.json"
        asked = json.dumps({**dataclasses.asdict(subject), "out": str(out), "sass": sass})
        try:
            done = _python(["-m", __spec__.name, asked], variables, timeout)
        except subprocess.TimeoutExpired:
            return Captured([], [], f"it took longer than {timeout:.0f} s")
        if not out.exists():
            why = f"the program ended its process ({_ending(done.returncode)})"
            return Captured([], [], f"{why}\n{done.stderr[-2000:]}")
        captured = json.loads(out.read_text())
    return Captured(**captured | {"compiled": [Compiled(**one) for one in captured["compiled"]]})


def run_on_cpu(subject: Subject, timeout: float = 120.0) -> dict[str, Any]:
    """Run a subject on the CPU target, with a Case's problem shrunk.

    Returns the fields `accesses`, `findings` and `unobserved` of `Captured`.
    """
    with tempfile.TemporaryDirectory(prefix="kiln-") as folder:
        report = Path(folder) / "report.json"
        variables = {"KILN_TARGET": "cpu", "KILN_SANITIZE": "race,memory,sync,banks"}
        variables["KILN_REPORT"] = str(report)
        asked = json.dumps({**dataclasses.asdict(subject), "out": "", "sass": False})
        try:
            done = _python(["-m", __spec__.name, asked], variables, timeout)
        except subprocess.TimeoutExpired:
            why = f"the CPU target took longer than {timeout:.0f} s."
            return {"unobserved": f"Neither bank conflicts nor findings of the sanitizer: {why}"}
        read = json.loads(report.read_text()) if report.exists() else {"bank_conflicts": [], "findings": []}
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        why = f"On the CPU target the program ended with {last[0].strip()}" if done.returncode and last else ""
        return {"accesses": read["bank_conflicts"], "findings": read["findings"], "unobserved": why}


def _python(words: list[str], variables: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=child_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout,
        errors="replace",
        check=False,
    )


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def _run(subject: Subject) -> Any:
    """Run a subject; return the config of a Case."""
    _alias.take_over()
    serve_cuda.activate()  # for tensors and streams of GPU programs
    if subject.program:
        run.execute(subject.program)
        return None
    case = loading.load(subject.case)
    problem = case.changed(case.problem(subject.problem.get("number", 0)), subject.problem.get("set", {}))
    config = None if subject.config is None else _config(case, problem, subject.config)
    if os.environ.get("KILN_TARGET") == "cpu":
        problem = verify_jobs.shrunk(case.where, problem, _FEW_ELEMENTS).problem
    case.kernel(*case.inputs(problem), config=config, problem=problem)
    return config


_FEW_ELEMENTS = 1 << 14
"""Elements of a Case's inputs under the sanitizer: a few CTAs show what a line does."""


def _config(case: Any, problem: Any, text: str) -> Any:
    return command_line.config(argparse.Namespace(config=text), case, problem)


def main(argv: Sequence[str]) -> None:
    """Run the subject that a JSON argument describes; `compile_subject` and `run_on_cpu` start this process."""
    asked = json.loads(argv[0])
    out = asked.pop("out")
    sass = asked.pop("sass")
    subject = Subject(**asked)
    if not out:
        _run(subject)
        return
    with capturing(sass) as captured:
        try:
            captured.config = _run(subject)
        except SystemExit as end:
            captured.failure = f"status {end.code}" if end.code not in (0, None) else ""
        except BaseException as error:
            captured.failure = f"{type(error).__name__}: {error}"
    Path(out).write_text(json.dumps(dataclasses.asdict(captured)))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads and exit handlers of the program


if __name__ == "__main__":
    main(sys.argv[1:])
