"""What `--json` writes: one object for every verb, with the same fields.

`kiln VERB --json` runs the verb in a process of its own, so that whatever it or its program prints, and however it ends,
what is written is one object (docs/reference/json.md). Without a name it goes to standard output; a name ends with
`.json`, and then the verb prints as it does without the option.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import kiln

Json: TypeAlias = Any
"""What JSON can hold."""
SCHEMA = 1
"""Counts changes that readers have to know of; new fields are none."""
RESULT = "_KILN_RESULT"
"""The environment variable with the file that a verb, run for its answer, writes its result to."""
result_file: list[str] = []
"""That file, in the process that runs for an answer."""
_PROGRAMS = ("run", "inspect")
"""Verbs that take a program: words after it are the program's."""
_WRITE_FILE = ("bench", "profile", "report", "tune", "verify")
"""Verbs that write their results where their own `--json FILE` says."""
_PRINT = ("devices", "doctor")
"""Verbs whose own `--json` prints their results."""
_SHOWN = ("--outline", "--resources", "--tasks")
"""What `kiln inspect` prints in place of the model of a page, for which it would run the program."""
_WITH_VALUE = (
    "--target",
    "--arch",
    "--sanitize-report",
    "--html",
    "--tasks",
    "--config",
    "--problem",
    "--set",
    "--timeout",
)
STATUSES = {0: "good", 1: "failed", 2: "bad use", 3: "not here", 4: "lost", 5: "untrusted", 130: "interrupted"}
"""Exit statuses of all verbs in words; others are those of a program, or of a process that a signal ended."""


@dataclasses.dataclass
class Finding:
    """Something that is wrong, and where."""

    kind: str
    """"race", "memory", "sync", "numeric"; "speed"; the kind of a check that failed; "missing" or "broken"."""
    severity: str
    """"error" or "warning"."""
    message: str
    file: str | None = None
    line: int | None = None
    help: str = ""


@dataclasses.dataclass
class Answer:
    """The answer of a verb."""

    verb: str
    arguments: list[str]
    exit: int
    status: str
    """The exit status in a word (`STATUSES`)."""
    passed: bool
    findings: list[Finding]
    limiter: str | None
    """What limits a kernel, of verbs that know it: its busiest unit by the clock, else what limits occupancy."""
    result: Json
    """What the verb has record, in its own form; None of verbs that print only."""
    output: str
    errors: str
    """What was printed on standard output and standard error."""
    schema: int = SCHEMA
    kiln: str = kiln.__version__


def split(verb: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take `--json [FILE]` out of the words after a verb. Returns where it goes (`-`: standard output; None: nowhere)."""
    target: str | None = None
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        following = words[at + 1] if at + 1 < len(words) else ""
        at += 1
        if word.startswith("--json="):
            target = word.removeprefix("--json=") or "-"
        elif word == "--json":
            named = following.endswith(".json") or (following == "-" and verb not in _PROGRAMS)
            target = following if named else "-"
            at += named
        elif word == "--" or (verb in _PROGRAMS and _begins_program(verb, word)):
            return target, [*rest, word, *words[at:]]
        else:
            rest.append(word)
            if word in _WITH_VALUE and verb in _PROGRAMS and following:
                rest.append(following)
                at += 1
    return target, rest


def _begins_program(verb: str, word: str) -> bool:
    """Return whether the words from this one on are a program and its arguments."""
    if word.startswith("-"):
        return word in ("-", "-m", "-c")
    if verb != "inspect":
        return True
    from .loading import names_case  # options of the verb may stand after a Case

    return not names_case(word)


def answer(verb: str, words: Sequence[str], target: str) -> int:
    """Run a verb and write its answer. Returns the verb's exit status."""
    shown = target != "-"
    answered = ask(verb, words, show_output=shown, show_errors=True)
    text = json.dumps(dataclasses.asdict(answered), indent=2) + "\n"
    if not shown:
        sys.stdout.write(text)
        return answered.exit
    try:
        Path(target).write_text(text)
    except OSError as reason:
        print(f"kiln: {target} cannot be written: {reason.strerror}", file=sys.stderr)
        return 2
    return answered.exit


def ask(
    verb: str,
    words: Sequence[str],
    *,
    timeout: float | None = None,
    show_output: bool = False,
    show_errors: bool = False,
    folder: str | None = None,
) -> Answer:
    """Run a verb in a process of its own, and return its answer.

    Args:
        verb: The verb.
        words: The words after it, without `--json`.
        timeout: Seconds after which it is ended; None: never.
        show_output: Whether its standard output is printed, too.
        show_errors: Whether its standard error is.
        folder: The folder to run it in; None: the present one.
    """
    with tempfile.TemporaryDirectory(prefix="kiln-answer") as own:
        file = Path(own, "result.json")
        environment = dict(os.environ)
        environment[RESULT] = str(file)
        asked = _asking(verb, list(words), file, environment)
        started = subprocess.Popen(
            [sys.executable, "-m", "kiln", verb, *asked],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL if timeout is not None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        streams = (_Copy(started.stdout, show_output, sys.stdout), _Copy(started.stderr, show_errors, sys.stderr))
        late = False
        try:
            code = started.wait(timeout)
        except subprocess.TimeoutExpired:
            started.kill()
            code = started.wait()
            late = True
        except KeyboardInterrupt:
            started.send_signal(signal.SIGINT)
            code = started.wait()
        output, errors = (stream.text() for stream in streams)
        result = _read(file)
        if verb in _PRINT and result is None:
            result = _parsed(output)
            output = output if result is None else ""
    code = 128 - code if code < 0 else code
    status = f"took more than {timeout:g} seconds" if late else STATUSES.get(code, "ended")
    findings = _findings(verb, result)
    timed = verb in ("bench", "profile", "tune")
    limiter = (_first(result, "limiter") or _first(result, "limited_by")) if timed else None
    return Answer(verb, list(words), code, status, code == 0, findings, limiter, result, output, errors)


def put(result: object) -> None:
    """Hand over the result of a verb that has no option of its own for it, if it runs for its answer."""
    for path in result_file:
        Path(path).write_text(json.dumps(result))


def _asking(verb: str, words: list[str], file: Path, environment: dict[str, str]) -> list[str]:
    """Return the words that have a verb write its result."""
    if verb in _WRITE_FILE:
        return [*words, f"--json={file}"]
    if verb in _PRINT:
        return [*words, "--json"]
    shown = any(word.partition("=")[0] in _SHOWN for word in words)
    if verb == "inspect" and ("--no-run" in words or not shown):
        return [f"--json={file}", *words]
    if verb == "run" and any(word.partition("=")[0] == "--sanitize" for word in words):
        environment["KILN_REPORT"] = str(file)
    return words


def _read(file: Path) -> Json:
    return _parsed(file.read_text()) if file.is_file() else None


def _parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return None


class _Copy:
    """Reads a stream to its end beside the process that writes it, and shows it as it comes."""

    def __init__(self, stream: IO[str] | None, shown: bool, on: IO[str]) -> None:
        assert stream is not None
        self._stream = stream
        self._on = on if shown else None
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        for line in self._stream:
            self._lines.append(line)
            if self._on is not None:
                self._on.write(line)
                self._on.flush()

    def text(self) -> str:
        self._thread.join()
        self._stream.close()
        return "".join(self._lines)


# what verbs have record, in one form


def _findings(verb: str, result: Json) -> list[Finding]:
    if verb == "run":
        return [_of_sanitizer(each) for each in result or ()]
    if verb == "verify":
        verdicts = result if isinstance(result, list) else [result] if result else []
        bad = [each for verdict in verdicts for each in verdict["checks"] if _is_bad(each)]
        return [finding for each in bad for finding in _of_failed(each)]
    if verb == "profile":
        return [_of_flaw(each) for profile in result or () for each in profile["extra"].get("advice", ())]
    if verb == "doctor" and result:
        return [_of_machine(each) for each in result["findings"] if each.get("state", "ok") != "ok"]
    return []


def _of_sanitizer(record: dict[str, Json]) -> Finding:
    span = record["span"] or {}
    return Finding(
        record["kind"], record["severity"], record["message"], span.get("file"), span.get("line"), record["hint"]
    )


def _of_failed(check: dict[str, Json]) -> list[Finding]:
    """Return what is wrong by a check: all that the sanitizer found, else the check's own message."""
    return [_of_sanitizer(each) for each in check.get("findings") or ()] or [_of_check(check)]


def _is_bad(check: dict[str, Json]) -> bool:
    return check["status"] not in ("ok", "skipped", "refused")


def _of_check(check: dict[str, Json]) -> Finding:
    raised = check["raised"] or {}
    again = f"again: {check['again']}" if check.get("again") else ""
    return Finding(check["kind"], "error", check["message"], raised.get("file"), raised.get("line"), again)


def _of_flaw(record: dict[str, Json]) -> Finding:
    cost = "" if record["cost"] is None else f" (costs {record['cost']:.0%} of the time: {record['by']})"
    cure = f"{record['change']}; more: kiln kb show {record['page']}"
    return Finding("speed", "warning", record["fact"] + cost, record["file"] or None, record["line"] or None, cure)


def _of_machine(record: dict[str, Json]) -> Finding:
    severity = "error" if record["state"] == "broken" else "warning"
    text = ": ".join(part for part in (record["name"], record["value"], record["meaning"]) if part)
    return Finding(record["state"], severity, text, help=record["remedy"])


def _first(value: Json, name: str) -> str | None:
    """Return the first text under a name, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get(name), str):
            return value[name]
        value = list(value.values())
    if isinstance(value, list):
        return next((text for each in value if (text := _first(each, name)) is not None), None)
    return None
