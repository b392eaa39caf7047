"""The sanitizer across devices: `kiln run --devices N --sanitize`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

RIGHT = {
    "release and acquire",
    "fence and relaxed",
    "launches that meet",
    "a later launch",
    "the host after a barrier",
    "a flag that is reset",
    "two views, atomic",
    "freed after a barrier",
}
WRONG = {
    "fence of a device": "write-read",
    "relaxed send": "write-read",
    "relaxed wait": "write-read",
    "narrow send": "device-scope",
    "narrow wait": "device-scope",
    "launches that do not": "read-write or write-read",
    "the host at once": "write-write",
    "the host reads at once": "read-write or write-read",
    "an old flag": "read-write",
    "two views, plain": "atomic",
    "a store to a multicast address": "multicast",
    "freed at once": "freed",
}


def test_rules_across_devices(child):
    program = Path(__file__).with_name("device_races.py")
    done = child("-m", "kiln", "run", "--devices", "2", "--sanitize", str(program), KILN_CPU_OPT="0")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("found ")[2] for line in done.stdout.splitlines() if line.startswith("[0] found")]
    found = dict(map(json.loads, lines))
    assert {name: rules for name, rules in found.items() if name in RIGHT and rules} == {}
    missed = {name: found.get(name) for name, rule in WRONG.items() if not set(rule.split(" or ")) & set(found[name])}
    assert missed == {} and set(found) == RIGHT | WRONG.keys()
    assert "of an allocation of 128 bytes of device 1" in done.stderr and "on device 0" in done.stderr
