"""The process that runs users' code, started by `runners.Local`.

`python -m kiln.workbench.core.worker JOBS RESULTS PARENT` reads jobs from one pipe, a line of JSON each, and answers
on another; the output of jobs goes to neither. It runs one job at a time and ends when its parent is gone, and after
anything that leaves a process in doubt: a GPU error, lack of memory, many jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import sysconfig
import time
import traceback
from typing import Any

from kiln import DSLCudaRuntimeError
from kiln.hardware import current, driver

MOST_JOBS = 200
"""Jobs after which a worker is replaced, since they leave memory and state behind."""

_PR_SET_PDEATHSIG = 1

# Bound before any user's code is imported, which may replace it.
clock = time.perf_counter


def main(jobs: int, results: int, parent: int) -> None:
    """Serve the pipes until the parent closes them."""
    _end_with(parent)
    faulthandler.enable(all_threads=False)  # a crash prints where the job was
    for descriptor in (jobs, results):  # programs that jobs start must not hold them open
        os.set_inheritable(descriptor, False)
    with os.fdopen(jobs, "rb") as lines, os.fdopen(results, "wb", buffering=0) as answers:
        start = json.loads(lines.readline() or b"{}")
        sys.path += [entry for entry in start.get("path", ()) if entry not in sys.path]
        if start.get("first", "").startswith("kiln."):  # a module of Kiln: loading it does not count as the job's time
            with contextlib.suppress(Exception):
                importlib.import_module(start["first"].partition(":")[0])
        _answer(answers, _ready(start.get("gpu")))
        for done, line in enumerate(lines, 1):
            answer = perform(json.loads(line))
            answer["last"] = bool(answer.get("last")) or done >= MOST_JOBS
            _answer(answers, answer)
            if answer["last"]:
                break
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads and exit handlers of jobs


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended already
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides


def _answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")


def _ready(gpu: str | None) -> dict[str, Any]:
    """Return a worker's first message: whether it has the GPU it was started for."""
    if gpu is None:
        return {"ready": True}
    try:
        driver.set_device(0)  # this process sees no other
        return {"ready": True, "gpu": driver.device_name(0)}
    except Exception as error:
        return {"ready": False, "error": f"{type(error).__name__}: {error}"}


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job; return its status, the result or the error, and seconds."""
    start = clock()
    patience = job.get("timeout")
    if patience:  # prints where a job hangs before the parent kills it
        faulthandler.dump_traceback_later(0.8 * patience, file=sys.__stderr__ or 2)
    try:
        module, _, name = job["do"].partition(":")
        result = getattr(importlib.import_module(module), name)(**job["arguments"])
        _wait_for_gpu()
        answer = {"status": "ok", "result": json.loads(json.dumps(result))}
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of the user's code
        status = status_of(error)
        answer = {"status": status, "error": described(error), "last": status in ("oom", "device_error")}
    finally:
        if patience:
            faulthandler.cancel_dump_traceback_later()
    return answer | {"seconds": clock() - start}


def _wait_for_gpu() -> None:
    """Wait for the GPU, so that a kernel's error is reported by the job that launched it."""
    if current.cuda_is_host_memory or driver.library() is None:
        return
    context = ctypes.c_void_p()
    if driver.function("cuCtxGetCurrent")(ctypes.byref(context)) == 0 and context.value:
        driver.call("cuCtxSynchronize")


def status_of(error: BaseException) -> str:
    """Return `oom`, `device_error` or `error`."""
    name = type(error).__name__
    text = str(error)
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or "CUDA_ERROR_OUT_OF_MEMORY" in text:
        return "oom"
    if isinstance(error, DSLCudaRuntimeError) or name == "AcceleratorError" or text.startswith("CUDA error"):
        return "device_error"
    return "error"


def described(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: type, message, place and the part of the traceback that is the user's."""
    here = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(here)]
    kiln = os.path.dirname(os.path.dirname(here)) + os.sep
    others = (kiln, "<", *sysconfig.get_paths().values())
    users = [frame for frame in frames if not frame.filename.startswith(others)]
    place = (users or frames or [None])[-1]
    record: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error),
        "file": getattr(error, "file", None) or (place.filename if place else None),
        "line": getattr(error, "line", None) or (place.lineno if place else None),
        "traceback": "".join(traceback.format_list(users or frames)),
    }
    if type(error).__name__ == "ContractError":  # in parts, so that the parent can raise it
        record["message"] = getattr(error, "message", record["message"])
    return record


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
