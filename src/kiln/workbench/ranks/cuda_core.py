"""`cuda.core` for programs that choose a device and make streams with it, where the package is missing."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from ..serve_cuda import device as served
from ..serve_cuda import streams


class Device:
    """A served device."""

    def __init__(self, device_id: int | None = None) -> None:
        self.device_id: int = served.check_number(device_id)

    def set_current(self, context: object = None) -> None:
        """Make it this thread's device."""
        served.set_current(self.device_id)

    def create_stream(self, obj: object = None, options: object = None) -> Stream:
        """Return a new stream of the device."""
        return Stream(device=self.device_id)

    @property
    def default_stream(self) -> Stream:
        return Stream(device=self.device_id, stream_ptr=0)

    def sync(self) -> None:
        """Wait for all work of the device."""
        streams.synchronize_device(self.device_id)

    @property
    def compute_capability(self) -> tuple[int, int]:
        device = served.current()
        return device.major, device.minor

    @property
    def name(self) -> str:
        return served.current().name

    @property
    def properties(self) -> SimpleNamespace:
        device = served.current()
        facts = {"multiprocessor_count": device.multi_processor_count, "warp_size": device.warp_size}
        return SimpleNamespace(**facts)

    @property
    def arch(self) -> str:
        major, minor = self.compute_capability
        return f"{major}{minor}"

    def __int__(self) -> int:
        return self.device_id


class Stream(streams.Stream):
    """A stream, with the names that `cuda.core` has."""

    @property
    def handle(self) -> int:
        return self.cuda_stream

    def sync(self) -> None:
        """Wait for its work."""
        self.synchronize()

    def close(self) -> None:
        """Do nothing: it ends with the last reference."""


def serve(module: ModuleType) -> None:
    """Put the classes into the module."""
    for value in (Device, Stream):
        setattr(module, value.__name__, value)
