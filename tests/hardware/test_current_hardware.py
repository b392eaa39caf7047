"""Which GPU: every way to say it reaches everyone who asks."""

from __future__ import annotations

from pathlib import Path

import pytest

import kiln
import kiln.cute as cute
from kiln import testing, utils
from kiln.cutlass_dsl import BaseDSL
from kiln.hardware import current, devices, driver
from kiln.hardware.architectures import DEFAULT
from kiln.kernels.dispatch import devices as kernel_devices
from kiln.workbench.serve_cuda import bindings
from kiln.workbench.serve_cuda import device as served

READERS = {
    "architecture": lambda: current.architecture().name,
    "get_arch_enum": lambda: BaseDSL._get_dsl().get_arch_enum().name,
    "device": lambda: current.device().sm_count,
    "HardwareInfo": lambda: utils.HardwareInfo().get_device_multiprocessor_count(),
    "L2 cache": lambda: utils.HardwareInfo().get_l2_cache_size_in_bytes() >> 20,
    "clusters": lambda: utils.HardwareInfo().get_max_active_clusters(1),
    "shared memory": lambda: utils.get_smem_capacity_in_bytes() >> 10,
    "SmemAllocator": lambda: utils.SmemAllocator.capacity_in_bytes() >> 10,
    "kernel library": lambda: (kernel_devices.current().smem >> 10, kernel_devices.max_active_clusters(1)),
    "benchmarks": lambda: testing.get_workspace_count(1 << 20, 0, 1000),
    "torch.cuda": lambda: (served.current().major, served.current().multi_processor_count),
    "cuda-bindings": lambda: (bindings.attribute(75), bindings.attribute(16), bindings.attribute(97) >> 10),
}


def answers(name: str, sm_count: int, cache: int, smem: int, major: int) -> dict[str, object]:
    """What readers say of an architecture; sizes in MiB and KiB."""
    return {
        "architecture": name, "get_arch_enum": name, "device": sm_count, "HardwareInfo": sm_count,
        "L2 cache": cache, "clusters": sm_count, "shared memory": smem, "SmemAllocator": smem,
        "kernel library": (smem, sm_count), "benchmarks": 3 * cache + 1, "torch.cuda": (major, sm_count),
        "cuda-bindings": (major, sm_count, smem),
    }  # fmt: skip


ANSWERS = {
    "sm_80": answers("sm_80", 108, 40, 163, 8),
    "sm_90a": answers("sm_90a", 132, 50, 227, 9),
    "sm_120a": answers("sm_120a", 170, 96, 99, 12),
}


def asked() -> dict[str, object]:
    return {name: read() for name, read in READERS.items()}


def traced(*options: object, target: str) -> dict[str, object]:
    """What readers say while a program is compiled."""
    seen: list[dict[str, object]] = []

    @cute.jit
    def program():
        seen.append(asked())

    cute.compile[options](program, target=target) if options else cute.compile(program, target=target)
    return seen[-1]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("CUTE_DSL_ARCH", "CUTE_DSL_COMPILER_OPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(driver, "available", lambda: False)


@pytest.fixture
def a100(monkeypatch):
    """A driver that shows an A100, which says it has 107 SMs."""
    numbers = {"sm_count": 107, "l2_bytes": 40 << 20, "major": 8, "minor": 0}
    for name, answer in (
        ("available", lambda: True),
        ("device_count", lambda: 1),
        ("several", lambda: False),
        ("current_device", lambda: 0),
        ("device_name", lambda number: "Some A100"),
        ("attribute", lambda name, number: numbers[name]),
        ("cuda_version", lambda: "13.0"),
    ):
        monkeypatch.setattr(driver, name, answer)
    devices.device_here.cache_clear()
    yield
    devices.device_here.cache_clear()


@pytest.mark.parametrize("target", ["cpu", "nvidia"])
class TestEveryWay:
    def test_nothing(self, target):
        assert traced(target=target) == ANSWERS[DEFAULT]
        with kiln.target(target):
            assert asked() == ANSWERS[DEFAULT]

    @pytest.mark.parametrize("option", ["--gpu-arch sm_120a", cute.GPUArch("sm_120a")])
    def test_the_option(self, monkeypatch, target, option):
        assert traced(option, target=target) == ANSWERS["sm_120a"]
        assert traced(target=target) == ANSWERS[DEFAULT]  # the choice ended with the compilation
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
        assert traced(option, target=target) == ANSWERS["sm_120a"]

    def test_the_setting(self, monkeypatch, target):
        for name in ("sm_80", "sm_120a"):
            monkeypatch.setenv("CUTE_DSL_ARCH", name)
            assert traced(target=target) == ANSWERS[name]
            with kiln.target(target):
                assert asked() == ANSWERS[name]

    def test_options_of_every_compilation(self, monkeypatch, target):
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_120a")
        monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "--gpu-arch sm_80")
        assert traced(target=target) == ANSWERS["sm_80"]
        with kiln.target(target):
            assert asked() == ANSWERS["sm_80"]


def test_an_implicit_call_follows_the_setting(monkeypatch):
    @cute.jit
    def major():
        return kiln.Int32(current.architecture().major)

    with kiln.target("cpu"):
        assert major() == 9
        for name, value in (("CUTE_DSL_ARCH", "sm_80"), ("CUTE_DSL_COMPILER_OPT", "--gpu-arch sm_120a")):
            monkeypatch.setenv(name, value)
            assert major() == current.architecture().major == ANSWERS[value.split()[-1]]["torch.cuda"][0]  # type: ignore[index]


def test_code_is_made_for_it(monkeypatch):
    @cute.kernel
    def nothing():
        pass

    @cute.jit
    def program():
        nothing().launch(grid=1, block=1)

    def compiled(options: str = "") -> str:
        return cute.compile(program, target="nvidia", options=options).__ptx__ or ""

    assert f".target {DEFAULT}" in compiled()
    assert ".target sm_100a" in compiled("--gpu-arch sm_100a")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    assert ".target sm_80" in compiled()


@pytest.mark.usefixtures("a100")
class TestWithAGpu:
    def test_the_current_device(self):
        here = ANSWERS["sm_80"] | answers("sm_80", 107, 40, 163, 8)
        with kiln.target("nvidia"):
            assert asked() == here
            assert current.device().name == "Some A100"
            assert utils.HardwareInfo(0).get_device_multiprocessor_count() == 107
            with pytest.raises(ValueError, match="no device 1: the driver shows 1"):
                utils.HardwareInfo(1)
        assert traced(target="nvidia") == here
        with kiln.target("nvidia"):
            assert traced(target="cpu") == ANSWERS[DEFAULT]  # programs do not run on it

    def test_an_architecture_of_its_own_kind(self, monkeypatch):
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
        with kiln.target("nvidia"):
            assert current.device().sm_count == 107

    def test_an_architecture_of_another_kind(self, monkeypatch):
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
        with kiln.target("nvidia"):
            assert asked() == ANSWERS["sm_90a"]


def test_a_wrong_architecture(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_1")
    for read in READERS.values():
        with pytest.raises(kiln.DSLRuntimeError, match="CUTE_DSL_ARCH='sm_1': expected one of sm_80"):
            read()


A_NEW_ONE = """
import importlib.machinery, importlib.util, sys

class Loader(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        text = super().get_data(path).decode()
        return text.replace(LAST, LAST + ROW).encode() if path.endswith("architectures.py") else b""

    def path_stats(self, path):
        raise OSError  # no bytecode

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "kiln.hardware.architectures":
            return importlib.util.spec_from_file_location(name, FILE, loader=Loader(name, FILE))

sys.meta_path.insert(0, Finder())
import kiln, kiln.cute as cute
from kiln import utils
from kiln.hardware import current, features
from cutlass.base_dsl.arch import Arch

assert Arch.sm_130a in list(Arch) and Arch.sm_130 > Arch.sm_121f
with kiln.target("cpu"):
    assert current.architecture() is Arch.sm_130a and current.device().capability == (13, 0)
    assert utils.get_smem_capacity_in_bytes() == 299 << 10
assert features.CLUSTERS.on(Arch.sm_130) and not features.SET_MAX_REGISTERS.on(Arch.sm_130)
assert cute.GPUArch("sm_130a").value == "sm_130a"
assert "sm_130a" in kiln.base_dsl.settings.markdown_table()
print("known")
"""


def test_a_new_architecture_is_one_row(child):
    from kiln.hardware import architectures

    file = Path(architectures.__file__)
    last = next(line for line in reversed(file.read_text().splitlines(True)) if line.startswith("    Generation("))
    row = '    Generation(13, 0, "a", 90, 300 * _KIB, cluster=16),\n'
    program = f"LAST, ROW, FILE = {last!r}, {row!r}, {str(file)!r}\n" + A_NEW_ONE
    done = child("-c", program, CUTE_DSL_ARCH="sm_130a")
    assert (done.returncode, done.stdout) == (0, "known\n"), done.stderr


@pytest.mark.parametrize(("arch", "before", "after"), [(None, DEFAULT, "sm_100a"), ("sm_103a", "sm_103a", "sm_103a")])
def test_a_program_that_uses_tcgen05_is_meant_for_a_chip_with_it(monkeypatch, arch, before, after):
    seen: list[str] = []

    @cute.kernel
    def allocates():
        seen.append(BaseDSL._get_dsl().get_arch_enum().name)
        address = utils.SmemAllocator().allocate_array(kiln.Int32)
        if cute.arch.warp_idx() == 0:
            cute.arch.alloc_tmem(32, address)
            cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(kiln.Float32, 16, address), 32)
        seen.append(BaseDSL._get_dsl().get_arch_enum().name)

    @cute.jit
    def launch():
        allocates().launch(grid=1, block=32)

    if arch:
        monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    launch()
    assert seen == [before, after]
