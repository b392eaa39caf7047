"""The driver: errors by name, clusters, events and graphs, with a stand-in for libcuda."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.base_dsl.diagnostics import DSLCudaRuntimeError
from kiln.hardware import driver
from kiln.measure import timing


class Driver:
    """Notes the names of calls; `cuBroken` fails, `cuMissing` is not there. Time passes by calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state = 0
        self.config: driver.LaunchConfig | None = None
        self.cluster: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "cuMissing" or not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append(name)
            return self.answer(name, arguments)

        return function

    def answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cuGetErrorName":
            arguments[1]._obj.value = b"CUDA_ERROR_MISALIGNED_ADDRESS"
        elif name == "cuBroken":
            return 716
        elif name == "cuInit":
            return self.state
        elif name == "cuDriverGetVersion":
            arguments[0]._obj.value = 13000
        elif name == "cuEventCreate":
            arguments[0]._obj.value = 1
        elif name == "cuEventElapsedTime":
            arguments[0]._obj.value = 2.0
        elif name == "cuOccupancyMaxActiveClusters":
            config: Any = arguments[2]._obj
            attribute = driver.LaunchAttribute.from_address(config.attributes)
            self.config, self.cluster = config, (attribute.kind, *attribute.value[:3])
            arguments[0]._obj.value = 17
        return 0


@pytest.fixture
def cuda(monkeypatch):
    def clear() -> None:
        for cached in (driver._initialized, driver._primary_context, driver.active_clusters, driver.cuda_version):
            cached.cache_clear()

    found = Driver()
    clear()
    with monkeypatch.context() as patched:
        patched.setattr(driver, "library", lambda: found)
        yield found
    clear()


def test_a_driver_that_shows_no_gpu_has_a_version(cuda):
    """Code is compiled for it where there is no ptxas."""
    cuda.state = 100
    assert driver.cuda_version() == "13.0"
    assert not driver.available()


def test_errors_have_names_advice_and_suspects(cuda, monkeypatch):
    with pytest.raises(DSLCudaRuntimeError, match=r"cuBroken: CUDA_ERROR_MISALIGNED_ADDRESS \(error 716\)") as caught:
        driver.call("cuBroken")
    assert "check the alignment" in str(caught.value)
    assert int(caught.value.error_code) == 716
    monkeypatch.setattr(driver, "last_launches", lambda: "kernel_of_mine")
    with pytest.raises(DSLCudaRuntimeError, match="the last launches were:\nkernel_of_mine"):
        driver.call("cuBroken")
    with pytest.raises(DSLCudaRuntimeError, match="the CUDA driver has no cuMissing"):
        driver.call("cuMissing")


def test_without_a_driver(monkeypatch):
    monkeypatch.setattr(driver, "library", lambda: None)
    with pytest.raises(DSLCudaRuntimeError, match="no CUDA driver on this machine"):
        driver.call("cuInit")


def test_clusters_are_counted_for_a_kernel_that_takes_all_shared_memory(cuda):
    assert driver.active_clusters(1, 1000, 4, 9) == 17
    assert cuda.cluster == (4, 4, 1, 1)
    assert (tuple(cuda.config.grid), cuda.config.smem, cuda.config.stream, cuda.config.count) == ((4, 1, 1), 1000, 9, 1)
    assert cuda.calls[-2:] == ["cuLibraryUnload", "cuCtxPopCurrent_v2"]
    before = len(cuda.calls)
    assert driver.active_clusters(1, 1000, 4, 9) == 17
    assert len(cuda.calls) == before


@pytest.mark.parametrize("graphs", [False, True])
def test_time_between_events(cuda, graphs):
    runs: list[int] = []
    assert timing._time_on_gpu(lambda: runs.append(1), 2, 4, 5, graphs) == 500.0  # 2 ms for 4 runs
    assert len(runs) == (7 if graphs else 6)  # one before it is captured
    assert cuda.calls.count("cuGraphLaunch") == (2 if graphs else 0)
    assert cuda.calls.count("cuEventCreate") == cuda.calls.count("cuEventDestroy_v2") == 2


def test_a_capture_ends_when_what_is_captured_fails(cuda):
    with pytest.raises(ZeroDivisionError):
        driver.captured(5, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert cuda.calls[-1] == "cuStreamEndCapture"
