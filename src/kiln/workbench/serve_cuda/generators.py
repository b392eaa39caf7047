"""Random numbers for `cuda` tensors, from a separate generator as on a GPU: those for CPU tensors do not change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kiln._support import fork_safe

from . import device as served
from . import ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

RANDOM = frozenset(
    {
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
        "rand_like",
        "randn_like",
        "randint_like",
        "binomial",
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "dropout",
        "dropout_",
        "alpha_dropout",
        "feature_alpha_dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "rrelu",
        "rrelu_",
        "gumbel_softmax",
        "kaiming_uniform_",
        "kaiming_normal_",
        "xavier_uniform_",
        "xavier_normal_",
        "trunc_normal_",
        "orthogonal_",
        "sparse_",
    }
)
"""Names of the torch functions that draw random numbers without a generator argument."""

_lock = fork_safe.rlock()
_generators: dict[tuple[int | None, int | None], torch.Generator] = {}


def default_generator(number: int | None = None) -> torch.Generator:
    """Return the generator of a device, a CPU generator that nothing else uses; None: of this thread's."""
    return _generator(served.current_number() if number is None else number)


def host_generator() -> torch.Generator:
    """Return the generator of CPU tensors: each rank has its own."""
    import torch

    return torch.default_generator if ranks.current() is None else _generator(None)


def _generator(number: int | None) -> torch.Generator:
    """Return the generator of this thread's rank for a device, or for the CPU."""
    key = ranks.current(), number
    with _lock:
        if key not in _generators:
            import torch

            generator = _plain_generator_type()("cpu")
            generator.manual_seed(torch.default_generator.initial_seed())
            _generators[key] = generator
        return _generators[key]


@contextlib.contextmanager
def drawing(number: int | None) -> Iterator[None]:
    """While open, what draws from torch's default generator draws from that of a device, or of the CPU (None)."""
    import torch

    own = host_generator() if number is None else _generator(number)
    if own is torch.default_generator:
        yield
        return
    host = torch.default_generator
    with _lock:
        before = host.get_state()
        host.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(host.get_state())
            host.set_state(before)


def _plain_generator_type() -> Any:
    import torch

    return torch._C.Generator


def serve(torch: Any) -> None:
    """Make `torch.Generator(device="cuda")` work."""
    plain = torch._C.Generator

    base: Any = type(plain)

    class Meta(base):
        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, plain)

        def __call__(self, device: Any = "cpu") -> Any:
            if torch.device(device).type != "cuda":
                return plain(device)
            generator = base.__call__(DeviceGenerator, "cpu")
            generator.number = served.check_number(torch.device(device).index)
            return generator

    class DeviceGenerator(plain):
        """A generator for a served device."""

        number = 0

        @property
        def device(self) -> Any:
            return torch.device("cuda", self.number)

    class Generator(plain, metaclass=Meta):
        __doc__ = plain.__doc__

    Generator.__module__ = plain.__module__
    torch.Generator = Generator
