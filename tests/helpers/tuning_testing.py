"""A runner with made-up times, and a contract to tune with it."""

from __future__ import annotations

from kiln.workbench.core.opened_case import opened
from kiln.workbench.core.runners import Inline, Job, Outcome, Runner

CONTRACT = """
import numpy
import helper

configs = [{"tile": tile, "stages": 2} for tile in (8, 16, 32, 64, 128, 256)]
problems = [{"n": 64}, {"n": 4096}]

def get_inputs(n=64):
    return [numpy.arange(n, dtype=numpy.float32)]

def reference_fn(x):
    return helper.double(x)

def kernel_fn(x, config=None):
    return 2 * x

def validate(config, problem, device):
    return f"{config['tile']} threads are more than {problem['n']}" if config["tile"] > problem["n"] else None
"""
HELPER = "def double(x):\n    return x + x\n"


class FakeRunner(Runner):
    """Answers every job with what `us(problem, config)` says: microseconds, or the status of a failure."""

    def __init__(self, us, stop_after=None, dtype=None, predicted=None):
        self.us, self.jobs, self.stop_after, self.dtype = us, [], stop_after, dtype
        self.predicted = predicted
        """The predicted microseconds of a problem and a config; None of one that the clock cannot predict."""

    def done(self, what):
        """The arguments of the jobs of a kind."""
        return [job.arguments for job in self.jobs if job.do.endswith(f":{what}")]

    def run(self, jobs):
        for job in jobs:
            if job.do.endswith(":describe"):  # asks the contract, and no clock
                opened(job.arguments["where"], anew=True)
                yield from Inline().run([job])
                continue
            if self.stop_after is not None and len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            self.jobs.append(job)
            yield self._outcome(job)

    def _outcome(self, job: Job) -> Outcome:
        given = job.arguments
        what = job.do.rpartition(":")[2]
        if what == "compare":
            times = [self.us(given["problem"], config) for config in given["configs"]]
            rounds = [[time * (1 + 0.001 * (n % 3)) for n in range(20)] for time in times]
            return Outcome(job, "ok", {"rounds": rounds, "protocol": "fake/1", "flags": [], "clock": {}, "error": None})
        if what == "predicted":
            us = self.predicted and self.predicted(given["problem"], given["config"])
            if us is None:
                return Outcome(job, "error", error={"type": "error", "message": "no anchors"})
            time = {"low": 0.9 * us, "us": us, "high": 1.1 * us}
            return Outcome(job, "ok", {"version": "v1", "predictions": [{"device": given["device"], "burst": time}]})
        us = self.us(given["problem"], given["config"])
        if what == "compile_config":
            if us in ("compile_error", "invalid"):
                return Outcome(job, "ok", {"status": us, "message": f"no {us}", "type": "Fake"})
            launch = {
                "kernel": "k", "grid": [1024, 1, 1], "block": [given["config"]["tile"], 1, 1], "cluster": [1, 1, 1],
                "smem": 400_000 if us == "no_fit" else 0, "registers": 32, "spills": 0, "local": 0, "barriers": 1,
            }  # fmt: skip
            return Outcome(job, "ok", {"status": "ranked", "launches": [launch], "dtype": self.dtype})
        if isinstance(us, str):
            return Outcome(job, us, error={"type": us, "message": f"made-up {us}"})
        return Outcome(job, "ok", {"status": "ok", "us": [0.99 * us, us, 1.01 * us], "n": 20, "protocol": "fake/1"})
