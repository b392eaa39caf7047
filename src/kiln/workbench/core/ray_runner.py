"""A runner that hands jobs to a Ray cluster (extra `ray`).

Ray places jobs and survives lost machines. On its node a job runs in a worker of the same kind as on this machine, so
whatever it does is an outcome; journal, search and choice stay in the process that started it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...base_dsl import cache, packages
from . import contracts, source_closure
from .command_line import NotHere
from .contracts import ContractError
from .environment import environment
from .runners import InfrastructureLost, Job, Local, Outcome, Runner

EXCLUDED = (".kiln", ".git", ".venv", "venv", "__pycache__", "*.pyc", ".pytest_cache", ".ruff_cache", "node_modules")
"""Files of a project that are not sent, besides those of its `.gitignore`."""
MOST_BYTES = 100 << 20
"""The largest project that is sent."""
ATTEMPTS = 3
"""Machines that a job may lose before its status is `lost`."""
_PATIENCE = 180.0
"""Seconds besides its own time that a job may take, for its worker to start and its node to answer."""
_PROJECT = "{{kiln-project}}"


@dataclasses.dataclass
class _Slot:
    """Room for one job at a time on a node: a core, or a GPU."""

    node: str
    name: str
    gpu: str | None = None
    busy: bool = False


@dataclasses.dataclass
class _Flight:
    job: Job
    slot: _Slot
    deadline: float
    attempt: int


class Ray(Runner):
    """Runs jobs on a cluster.

    `address` is `auto` (of this machine's environment), `ray://host:10001`, another address, or `local`: a cluster for
    this run only. The folder `project` (see `project_of`) is sent to the nodes. Kiln is installed there, or sent as
    well (`ship_kiln`). Nodes with another version are named in `left_out` and get no jobs.
    """

    def __init__(
        self,
        address: str = "auto",
        timeout: float = 60.0,
        memory: int | None = None,
        project: Path | None = None,
        ship_kiln: bool = False,
    ) -> None:
        self.timeout = timeout
        self.memory = memory
        self.project = project
        self._ray = _import_ray()
        self._own = not self._ray.is_initialized()
        self._connect(address, ship_kiln)
        self.nodes: list[dict[str, Any]]
        self.left_out: list[str]
        self.nodes, self.left_out = self._ask_nodes()
        for why in self.left_out:
            print(f"left out: {why}", file=sys.stderr)
        self.model: str | None = next((gpu for node in self.nodes for gpu in node["gpus"]), None)
        self._slots = [slot for node in self.nodes for slot in _slots(node)]
        self._perform = self._ray.remote(perform_on_node)
        self._flights: dict[Any, _Flight] = {}
        if not self._slots:
            self.close()
            raise InfrastructureLost("no node of the cluster can be used: " + "; ".join(self.left_out))

    # -- the cluster

    def _connect(self, address: str, ship_kiln: bool) -> None:
        if not self._own:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        shared = {name: value for name, value in os.environ.items() if name.startswith(("KILN_", "CUTE_DSL_"))}
        shared.pop("CUTE_DSL_CACHE_DIR", None)  # a folder of this machine
        runtime: dict[str, Any] = {"env_vars": shared}
        if self.project is not None:
            runtime |= {"working_dir": str(self.project), "excludes": list(EXCLUDED)}
        if ship_kiln:
            runtime["py_modules"] = [str(Path(__file__).resolve().parents[2])]
        options: dict[str, Any] = {"runtime_env": runtime, "log_to_driver": False, "logging_level": logging.ERROR}
        try:
            self._ray.init(address=address, **({"include_dashboard": False} if address == "local" else {}), **options)
        except (ConnectionError, ValueError, RuntimeError) as failed:
            raise InfrastructureLost(f"no Ray cluster at {address!r}: {failed}") from None

    def _ask_nodes(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the nodes that can be used with what they have, and why others cannot."""
        ask = self._ray.remote(_reporter())
        asked: dict[Any, dict[str, Any]] = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                options = {"num_cpus": 0, "scheduling_strategy": self._on(node["NodeID"], False)}
                asked[ask.options(**options).remote()] = node
        good: list[dict[str, Any]] = []
        bad: list[str] = []
        own = own_versions()
        for reference, node in asked.items():
            name = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
            try:
                answer = self._ray.get(reference, timeout=_PATIENCE)
            except Exception as failed:  # any error of Ray: a node that does not answer cannot work
                bad.append(f"{name}: {[type(failed).__name__, *str(failed).strip().splitlines()][-1]}")
                continue
            other = {what: answer[what] for what, here in own.items() if answer[what] != here}
            if other:
                differing = [f"{what} {there or 'is missing'}, here {own[what]}" for what, there in other.items()]
                bad.append(f"{name}: {', '.join(differing)}")
            else:
                cpus, gpus = (int(node["Resources"].get(what, 0)) for what in ("CPU", "GPU"))
                about = {"id": node["NodeID"], "name": node["NodeManagerHostname"], "cpus": cpus}
                good.append({**answer, **about, "gpus": answer["gpus"][:gpus]})
        return good, bad

    def _on(self, node: str, soft: bool) -> Any:
        return packages.load("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(node, soft)

    @property
    def models(self) -> list[str]:
        """The GPU models of the cluster."""
        return sorted({gpu for node in self.nodes for gpu in node["gpus"]})

    @property
    def timers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of GPUs of the chosen model."""
        return max(1, sum(slot.gpu is not None and slot.gpu == self.model for slot in self._slots))

    def environment(self) -> dict[str, Any]:
        """Return the environment of the nodes with GPUs of the chosen model."""
        for node in self.nodes:
            if self.model is not None and self.model in node["gpus"]:
                return {**environment(), "gpu": self.model, "driver": node["driver"], "uuid": None}
        return {**environment(), "gpu": None, "driver": None, "uuid": None}

    @property
    def arch(self) -> str | None:
        """The architecture of the chosen model."""
        return next((node["arch"] for node in self.nodes if self.model in node["gpus"]), None)

    # -- jobs

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield outcomes as they come. A job whose machine is lost runs elsewhere."""
        coming = iter(jobs)
        waiting = deque[tuple[Job, int]]()
        more = True
        try:
            while True:
                for slot in self._slots:
                    if slot.busy:
                        continue
                    choice = _for(slot, waiting, self.model)
                    while choice is None and more:
                        job = next(coming, None)
                        more = job is not None
                        if job is not None:
                            waiting.append((job, 1))
                            choice = _for(slot, waiting, self.model)
                            if choice is None and len(waiting) > 4 * len(self._slots):
                                break
                    if choice is not None:
                        self._begin(slot, *choice)
                if not self._flights:
                    if waiting:
                        job, _ = waiting.popleft()
                        yield Outcome(job, "lost", error={"type": "Lost", "message": "no node is left for the job"})
                    elif not more:
                        return
                    continue
                yield from self._arrivals(waiting)
        finally:
            self._cancel()

    def _begin(self, slot: _Slot, job: Job, attempt: int) -> None:
        slot.busy = True
        arguments = json.dumps(job.arguments)
        if self.project is not None:
            arguments = arguments.replace(str(self.project), _PROJECT)
        timeout = job.timeout or self.timeout
        # If all nodes can be used, Ray itself replaces a node that died.
        options: dict[str, Any] = {"max_retries": ATTEMPTS, "retry_exceptions": False}
        options["scheduling_strategy"] = self._on(slot.node, soft=not self.left_out)
        options |= {"num_cpus": 1} if slot.gpu is None else {"num_cpus": 0, "num_gpus": 1}
        work = {
            "do": job.do,
            "arguments": arguments,
            "timeout": timeout,
            "memory": job.memory or self.memory,
            "env": job.env,
        }
        reference = self._perform.options(**options).remote(json.dumps(work), slot.gpu is not None)
        self._flights[reference] = _Flight(job, slot, time.monotonic() + 2 * timeout + _PATIENCE, attempt)

    def _arrivals(self, waiting: deque[tuple[Job, int]]) -> Iterator[Outcome]:
        try:
            ready, _ = self._ray.wait(list(self._flights), num_returns=1, timeout=1.0)
        except Exception as failed:
            raise InfrastructureLost(f"the cluster is gone: {failed}") from None
        for reference in ready:
            flight = self._flights.pop(reference)
            flight.slot.busy = False
            try:
                yield self._outcome(flight, json.loads(self._ray.get(reference)))
            except self._ray.exceptions.RayError as failed:
                yield from self._lost(flight, waiting, failed)
        for reference, flight in list(self._flights.items()):
            if time.monotonic() > flight.deadline:
                del self._flights[reference]
                flight.slot.busy = False
                self._ray.cancel(reference, force=True)
                yield from self._lost(flight, waiting, TimeoutError("its node did not answer in time"))

    def _outcome(self, flight: _Flight, answer: Mapping[str, object]) -> Outcome:
        fields = json.loads(json.dumps(answer).replace(_PROJECT, str(self.project))) if self.project else answer
        return Outcome(flight.job, **{**fields, "gpu": flight.slot.gpu})

    def _lost(self, flight: _Flight, waiting: deque[tuple[Job, int]], failed: BaseException) -> Iterator[Outcome]:
        """Retry a job whose machine was lost on another one, up to `ATTEMPTS` times."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._slots = [slot for slot in self._slots if slot.node in alive]
        if flight.attempt < ATTEMPTS and self._slots:
            waiting.append((flight.job, flight.attempt + 1))
            return
        said = str(failed).strip().splitlines()
        error = {"type": type(failed).__name__, "message": said[0] if said else "the machine was lost"}
        yield Outcome(flight.job, "lost", error=error, node=flight.slot.name)

    def _cancel(self) -> None:
        for reference, flight in self._flights.items():
            flight.slot.busy = False
            self._ray.cancel(reference, force=True)
        self._flights.clear()

    def close(self) -> None:
        """Cancel running jobs and leave the cluster; end it if it is our own."""
        if self._own and self._ray.is_initialized():
            if hasattr(self, "_flights"):
                self._cancel()
            self._ray.shutdown()


def of_case(address: str, where: str, timeout: float, memory: int | None = None, ship_kiln: bool = False) -> Ray:
    """Return a runner for a Case that is named as `loading.load` takes it."""
    project = project_of(contracts.path_of(where))
    return Ray(address, timeout=timeout, memory=memory, project=project, ship_kiln=ship_kiln)


def _import_ray() -> Any:
    try:
        return packages.load("ray")
    except ImportError:
        raise NotHere("--ray needs Ray: pip install 'kiln-dsl[ray]'") from None


def _slots(node: dict[str, Any]) -> Iterator[_Slot]:
    for _ in range(node["cpus"]):
        yield _Slot(node["id"], node["name"])
    for gpu in node["gpus"]:
        yield _Slot(node["id"], node["name"], gpu)


def _for(slot: _Slot, waiting: deque[tuple[Job, int]], model: str | None) -> tuple[Job, int] | None:
    if slot.gpu is not None and slot.gpu != model:
        return None
    for one in waiting:
        if one[0].needs_gpu == (slot.gpu is not None):
            waiting.remove(one)
            return one
    return None


# --- on the nodes ----------------------------------------------------------------------------------------------------


def own_versions() -> dict[str, Any]:
    """Return the versions that must be the same on every node for times to be comparable."""
    here = environment()
    return {"kiln": here["kiln"], "sources": cache.sources_hash()[:12], "ptxas": here["ptxas"]}


def _reporter() -> Any:
    """Return a function that describes a node; it is sent by value, since Kiln may be missing there."""

    def report() -> dict[str, Any]:
        facts: dict[str, Any] = {"kiln": None, "sources": None, "ptxas": None, "driver": None, "arch": None, "gpus": []}
        try:
            from kiln.hardware import architectures, driver
            from kiln.workbench.core import ray_runner  # noqa: PLW0406
            from kiln.workbench.core.environment import environment
        except ImportError:
            return facts
        facts |= ray_runner.own_versions()
        if driver.available():
            facts["gpus"] = [driver.device_name(number) for number in range(driver.device_count())]
            facts["arch"] = architectures.of_capability(*driver.capability(0)).name
            facts["driver"] = environment()["driver"]
        return facts

    return report


_here: dict[bool, Local] = {}
"""The runners of a process of the cluster: its jobs run one after another in the same worker."""


def perform_on_node(work: str, on_gpu: bool) -> str:
    """Run a job in a worker of this machine; return the outcome as JSON."""
    request = json.loads(work)
    if on_gpu not in _here:
        _here[on_gpu] = Local(1, [0] if on_gpu else [])
    arguments = json.loads(request["arguments"].replace(_PROJECT, os.getcwd()))
    job = Job(request["do"], arguments, on_gpu, request["timeout"], request["memory"], request["env"])
    (outcome,) = _here[on_gpu].run([job])
    answer = {name: getattr(outcome, name) for name in ("status", "result", "error", "stderr", "seconds", "node")}
    return json.dumps(answer).replace(os.getcwd(), _PROJECT)


# --- what is sent ----------------------------------------------------------------------------------------------------


def project_of(file: Path) -> Path | None:
    """Return the folder to send to other machines for a contract: its own or its package's; None for Kiln's own.

    Raises ContractError if the project cannot be sent whole.
    """
    sources = source_closure.source_files(file)
    if not any(map(source_closure.is_project, sources)):
        return None
    folder = file.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    for other in sources:
        if folder not in other.parents:
            raise ContractError(
                f"it imports {other}, which is outside of {folder}: other machines get that folder and nothing else; "
                "move the file into it, or install it there",
                file,
            )
    sizes = _sizes(folder)
    total = sum(sizes.values())
    if total > MOST_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} ({sizes[name] >> 20} MiB)" for name in largest)
        raise ContractError(
            f"{folder} has {total >> 20} MiB, and {MOST_BYTES >> 20} MiB are sent to other machines at most; "
            f"exclude what kernels do not need in its .gitignore: {named}"
        )
    return folder


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file and folder of a project that would be sent."""
    ignored = list(EXCLUDED)
    if (folder / ".gitignore").is_file():
        lines = (folder / ".gitignore").read_text().splitlines()
        ignored += [line.strip().strip("/") for line in lines if line.strip() and not line.startswith(("#", "!"))]
    sizes: dict[str, int] = {}
    for place, folders, files in os.walk(folder):
        inside = os.path.relpath(place, folder)
        names = {name: name if inside == "." else f"{inside}/{name}" for name in [*folders, *files]}
        kept = {n for n, whole in names.items() if not any(fnmatch.fnmatch(x, p) for p in ignored for x in (n, whole))}
        folders[:] = [name for name in folders if name in kept]
        for name in files:
            if name in kept and not os.path.islink(os.path.join(place, name)):
                top = name if inside == "." else inside.split("/")[0]
                sizes[top] = sizes.get(top, 0) + os.path.getsize(os.path.join(place, name))
    return sizes
