"""Tuning on a Ray cluster of two nodes: `make test STAGE=ray`. Skipped without Ray, and where it was not asked for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

import kiln
from kiln.workbench.core import loading, ray_runner
from kiln.workbench.core.contracts import ContractError
from kiln.workbench.core.records import Journal
from kiln.workbench.tune import cli as tune
from kiln.workbench.verify import cli as verify

CONTRACT = """
import time
import numpy

configs = [{"ms": ms} for ms in (9, 8, 7, 6, 5, 1, 4, 3, 10, 11, 12, 13)]

def get_inputs(n=64):
    return [numpy.arange(n, dtype=numpy.float32)]

def reference_fn(x):
    return x + x

def kernel_fn(x, config=None):
    time.sleep(config["ms"] / 1000)
    return 2 * x
"""
OPTIONS = ("--target", "cpu", "--timeout", "10", "--quiet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sleepy.py").write_text(CONTRACT)
    return tmp_path


# --- what is sent: needs no cluster


def test_r3_a_file_outside_of_the_project_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "k.py").write_text("import helper\n" + CONTRACT)
    (folder / "helper.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ContractError, match="helper.py, which is outside of"):
        ray_runner.project_of(inner / "k.py")
    assert ray_runner.project_of(folder / "sleepy.py") == folder
    assert ray_runner.project_of(Path(kiln.__file__)) is None


def test_r3_a_large_project_is_refused_with_what_to_exclude(folder: Path) -> None:
    (folder / "data").mkdir()
    with open(folder / "data" / "weights.bin", "wb") as large:
        large.truncate(300 << 20)
    case = folder / "sleepy.py"
    with pytest.raises(ContractError, match=r"300 MiB.*\.gitignore: data \(300 MiB\)"):
        ray_runner.project_of(case)
    (folder / ".gitignore").write_text("# large\n/data/\n")
    assert ray_runner.project_of(case) == folder


# --- two nodes


@pytest.fixture(scope="module")
def cluster():
    if os.environ.get("KILN_RAY_TESTS", "") in ("", "0"):
        pytest.skip("make test STAGE=ray")
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(kiln.__file__).parents[1]))  # nodes have the Kiln that is tested
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
        yield made
        made.shutdown()


def add_node(cluster, **more):
    return cluster.add_node(num_cpus=1, object_store_memory=80 << 20, **more)


def statuses(folder: Path, field: str) -> dict:
    records, torn = Journal(folder / ".kiln").read()
    assert torn == 0
    return {record.config[field]: record.status for record in records if record.config}


def chosen(folder: Path) -> dict:
    (entry,) = json.loads((folder / "tuned.json").read_text())["entries"]
    return entry["config"]


def test_r1_a_node_dies_in_the_middle(cluster, folder: Path) -> None:
    """12 configs, compiled and screened: 24 jobs, none of which is lost."""
    node = add_node(cluster)
    case = loading.load(folder / "sleepy.py")
    done = 0

    def report(stage: str, *_: int) -> None:
        nonlocal done, node
        done += stage == "screen"
        if done == 5:
            cluster.remove_node(node, allow_graceful=False)

    with ray_runner.Ray(cluster.address, timeout=10, project=folder) as runner:
        assert [runner.left_out, len(runner.nodes)] == [[], 2]
        found = tune.tune(case, runner=runner, target="cpu", timeout=10.0, report=report)
    assert found.counts() == {"ok": 12}
    assert found.measured == 25
    assert chosen(folder) == {"ms": 1}


def test_r2_the_driver_dies_and_the_run_goes_on_without_ray(cluster, folder: Path) -> None:
    words = [sys.executable, "-m", "kiln", "tune", "sleepy.py", *OPTIONS, "--ray", cluster.address]
    driver = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(Journal(folder / ".kiln").read()[0]) < 15 and driver.poll() is None:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = len(Journal(folder / ".kiln").read()[0])
    assert 15 <= before < 25
    assert tune.main([str(folder / "sleepy.py"), *OPTIONS]) == 0
    records = Journal(folder / ".kiln").read()[0]
    assert len({record.key for record in records}) == len(records) == 25
    assert chosen(folder) == {"ms": 1}


def test_r3_a_node_with_another_version_is_left_out(cluster, folder: Path) -> None:
    other = folder / "ptxas"
    other.write_text("#!/bin/sh\necho release 1.2, V1.2.3\n")
    other.chmod(0o755)
    node = add_node(cluster, env_vars={"KILN_PTXAS": str(other)})
    try:
        with ray_runner.Ray(cluster.address, timeout=10, project=folder) as runner:
            assert len(runner.nodes) == 1
            (why,) = runner.left_out
            assert f"ptxas 1.2.3, here {ray_runner.own_versions()['ptxas']}" in why
            jobs = [ray_runner.Job("kiln.workbench.core.environment:environment") for _ in range(4)]
            assert [outcome.status for outcome in runner.run(jobs)] == ["ok"] * 4
    finally:
        cluster.remove_node(node)


def test_verify_on_a_cluster(cluster, folder: Path) -> None:
    words = [
        str(folder / "sleepy.py"),
        "--target",
        "cpu",
        "--quick",
        "--quiet",
        "--config",
        "5",
        "--ray",
        cluster.address,
    ]
    assert verify.main(words) == 0
    records, _ = Journal(folder / ".kiln").read()
    assert {record.status for record in records} == {"ok"}


def test_r4_ten_faults_are_the_same_ten_records(cluster, tmp_path: Path) -> None:
    shutil.copy(str(faults.__file__), tmp_path / "faults.py")
    node = add_node(cluster)
    try:
        words = [str(tmp_path / "faults.py"), *OPTIONS, "--memory", "1G", "--ray", cluster.address]
        assert tune.main(words) == 0
    finally:
        cluster.remove_node(node)
    assert statuses(tmp_path, "fault") == faults.STATUSES
    assert chosen(tmp_path) == {"fault": "good"}
