"""Devlogs of kernels, and claims for new pages, both from the journal."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from ..core.contracts import ContractError
from ..core.environment import environment
from ..core.loading import load
from ..core.records import Journal, Record, journal_of
from . import pages
from .pages import PageError

FOLDER = "docs/kernels"


def claim_of(key: str, journal: Path, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return a claim for a new page, that a record's config beats another as the journal says, and its source."""
    records, _ = Journal(journal).read()
    matching = [record for record in records if record.key.startswith(key)]
    if not records:
        hint = "--journal names the folder .kiln beside the contract"
        raise PageError(f"no records here: {hint}", journal / "records.jsonl")
    if not matching:
        raise PageError(f"no record has a key that begins with {key!r}", journal / "records.jsonl")
    record = matching[-1]
    # Readers would compare it with the slowest config of the problem.
    rivals = [
        other
        for other in records
        if other.case == record.case and other.problem == record.problem and other.us and other.config != record.config
    ]
    case = _case_name(record, folder)
    claim: dict[str, Any] = {"claim": "TODO: say what the change does", "case": case, "problem": record.problem}
    gpu = record.env.get("gpu")
    if record.us and rivals and gpu:
        slowest = max(rivals, key=lambda other: (other.us or [0, 0, 0])[1])
        assert slowest.us
        ratio = slowest.us[1] / record.us[1]
        change = {"from": slowest.config, "to": record.config}
        claim |= {"change": change, "metric": "ratio", "expect": f">= {0.97 * ratio:.2f}"}
        claim["on"] = gpu.removeprefix("NVIDIA ").split()[0]
    else:
        claim |= {"change": {"to": record.config}, "metric": "findings", "expect": "== 0"}
    source = f"journal record {record.key[:12]}"
    return [claim], f"{source}, `{record.again}`" if record.again else source


def _case_name(record: Record, folder: Path) -> str:
    """Return the case's file as pages name it: relative to the project's folder."""
    where = record.more.get("file") or _file_of(record.again) or record.case
    try:
        return Path(where).resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return where


def _file_of(again: str) -> str | None:
    return next((word.partition(":")[0] for word in again.split() if word.partition(":")[0].endswith(".py")), None)


def log(case: str, message: str, patterns: list[str], folder: Path) -> str:
    """Add an entry to the case's devlog; return where."""
    if not message.strip():
        raise ContractError("--message is empty: say what was done, and what came of it")
    message = message.strip()
    opened = load(case)
    used = [pages.find(folder, name) for name in patterns]
    path = folder / FOLDER / f"{opened.name}.md"
    begin = f"# {opened.name}\n\nDevlog of `{pages.shown(Path(opened.file or case))}`, the latest entry last.\n"
    text = path.read_text() if path.is_file() else begin
    before = _times(text)
    records, _ = journal_of(opened).read()
    rows: dict[str, str] = {}
    for record in records:
        if record.case == opened.name and record.us and record.status == "ok":
            name = f"{json.dumps(record.problem)} {json.dumps(record.config) if record.config else ''}".strip()
            was = before.get(name)
            change = f"{record.us[1] / was:.3f}" if was else ""
            rows[name] = f"| {name} | {record.us[1]:.2f} | {was if was is not None else ''} | {change} |"
    env = environment()
    parts = [
        f"## {datetime.date.today().isoformat()}: {message.splitlines()[0]}",
        f"Revision {_revision(folder)}, {env['gpu'] or 'no GPU'}, Kiln {env['kiln']}, sources {opened.digest()[:12]}.",
    ]
    if rest := "\n".join(message.splitlines()[1:]).strip():
        parts.append(rest)
    if rows:
        head = ["| problem, config | us | entry before | ratio |", "|---|--:|--:|--:|"]
        parts.append("\n".join([*head, *rows.values()]))
    if used:
        links = [f"[{page.title}]({os.path.relpath(page.path, folder / FOLDER)})" for page in used]
        parts.append(f"Patterns used: {', '.join(links)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n\n" + "\n\n".join(parts) + "\n")
    return f"{pages.shown(path)}: {len(rows)} times from the journal"


def _times(text: str) -> dict[str, float]:
    """Return the latest time of each row in a devlog."""
    return {name: float(us) for name, us in re.findall(r"^\| (\{.*?) \| ([\d.]+) \|", text, re.MULTILINE)}


def _revision(folder: Path) -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
