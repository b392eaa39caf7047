"""Other packages: whether one is installed, and which of its undocumented internals Kiln uses.

`INTERNALS` is the whole list. Each is probed where it is first needed; where the probe fails, Kiln does without it and
logs one line. `TRIED` has the oldest and newest versions that were tested; pyproject.toml bounds them, and `make test
STAGE=versions` tests them again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

TRIED = {
    "torch": ("2.6.0", "2.15.0"),
    "jax": ("0.5.0", "0.10.2"),
    "numpy": ("1.26.0", "2.4.6"),
    "apache-tvm-ffi": ("0.1.9", "0.1.15.post2"),
}
"""By distributions: the oldest and the newest version."""


class Internal(NamedTuple):
    """An internal of a package that may differ in its next version."""

    package: str
    uses: str
    """What is used of it, and where in Kiln."""
    without: str
    """What Kiln does without it."""
    since: str = ""
    """The version that brought it: no message is logged for an older one."""


INTERNALS = {
    "torch dispatcher": Internal(
        "torch",
        "the stable C interface (aoti_torch_*, torch_library_impl) and its calling convention: interop/torch/dispatch.py",
        "Python takes all calls of operators",
        since="2.10",
    ),
    "torch direct calls": Internal(
        "torch",
        "functions of c10 and ATen by their C++ names, keys of the dispatcher, Dynamo's _empty_strided_*: interop/torch/dispatch.py",
        "calls of operators go through PyTorch's dispatcher",
        since="2.10",
    ),
    "torch versions": Internal(
        "torch",
        "autograd's bump_version, is_inference, InferenceMode, GradMode and requires_grad by their C++ names: interop/torch/reader.py",
        "Python takes calls of operators that write to their inputs; exported ones are not registered; autograd is not told "
        "of tensors that other calls write to",
        since="2.6",
    ),
    "torch records": Internal(
        "torch",
        "where a Tensor points to its TensorImpl and that has its dispatch keys: interop/arguments/torch_layout.py",
        "Python reads tensors",
        since="2.10",
    ),
    "torch autograd": Internal(
        "torch",
        "_engine_run_backward, Function.apply and BackwardCFunction.apply, replaced: workbench/serve_cuda/callbacks.py",
        "on the CPU target backward functions and hooks see tensors of the CPU",
        since="2.6",
    ),
    "torch operators": Internal(
        "torch",
        "Library.impl, replaced, and a library's fields m and ns: workbench/serve_cuda/callbacks.py",
        "on the CPU target kernels that programs register for CUDA are not found",
        since="2.6",
    ),
    "torch constructors": Internal(
        "torch",
        "torch.utils._device._device_constructors: workbench/serve_cuda/tensors.py",
        "on the CPU target torch.set_default_device() is in force for the most common functions",
        since="2.6",
    ),
    "torch generators": Internal(
        "torch",
        "a subclass of torch._C.Generator in the place of torch.Generator: workbench/serve_cuda/generators.py",
        "on the CPU target there are no generators of the device cuda",
        since="2.6",
    ),
    "torch process groups": Internal(
        "torch",
        "distributed_c10d._world, _new_process_group_helper, thread isolation of groups: workbench/ranks/process_group.py",
        "`kiln run --devices` has no torch.distributed",
    ),
    "torch symmetric memory": Internal(
        "torch",
        "_SymmetricMemory, operators of symm_mem: workbench/ranks/symmetric_memory.py",
        "`kiln run --devices` has no torch.distributed._symmetric_memory",
    ),
    "torch parameters": Internal(
        "torch",
        "torch.nn.Parameter.__new__, replaced: workbench/serve_cuda/tensors.py",
        "on the CPU target parameters of tensors of CUDA are on the CPU",
        since="2.6",
    ),
    "torch old types": Internal(
        "torch",
        "types such as torch.FloatTensor and Tensor.record_stream, replaced: workbench/serve_cuda/tensors.py",
        "on the CPU target there are no types such as torch.cuda.FloatTensor",
        since="2.6",
    ),
    "torch flex attention": Internal(
        "torch",
        "torch.nn.attention.flex_attention._validate_device, replaced: workbench/serve_cuda/flex_attention.py",
        "on the CPU target flex_attention has no gradients",
        since="2.6",
    ),
    "torch autocast": Internal(
        "torch",
        "torch._C._ExcludeDispatchKeyGuard with keys of autocast: interop/torch/operators.py",
        "operators with autocast= turn autocast off by torch.autocast, which takes longer",
        since="2.6",
    ),
    "jax arrays": Internal(
        "jax",
        "ArrayImpl's aval, _sharding, _pjrt_layout, is_ready, is_deleted, unsafe_buffer_pointer: cute/host/jax_arrays.py",
        "Python reads arrays of JAX",
        since="0.6",
    ),
    "numpy arrays": Internal(
        "numpy",
        "where an ndarray keeps address, shape, strides, dtype and flags, and a dtype its kind and number: interop/arguments/arrays.py",
        "Python reads arrays of numpy",
        since="1.26",
    ),
}
"""All internals, by the names that `without` and `leaning_on` take."""

lacking: dict[str, str] = {}
"""The internals that this process does without, by name, and why. `kiln doctor` shows them."""
_warned: set[str] = set()


def without(name: str, reason: object) -> None:
    """Record that an internal is missing, and log one line, once, unless the package is older than the internal."""
    from .log import logger

    about = INTERNALS[name]
    version = version_of(about.package)
    text = f"{about.package} {version}: {about.without} ({' '.join(str(reason).split())})"
    lacking[name] = text
    if about.since and _numbers(version) < _numbers(about.since):
        logger().info("%s", text)
    elif name not in _warned:
        _warned.add(name)
        newest = TRIED[about.package][1]
        logger().warning("%s. Kiln was tried with %s up to %s", text, about.package, newest)


@contextlib.contextmanager
def leaning_on(name: str) -> Iterator[None]:
    """Run a block that uses an internal; leave it where the internal is not as expected."""
    try:
        yield
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as failure:
        without(name, f"{type(failure).__name__}: {failure}")


def version_of(package: str) -> str:
    """Return the version that a loaded package says it has."""
    return str(getattr(sys.modules.get(package), "__version__", "of an unknown version"))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, (2, 10) for 2.10.1+cpu; an unreadable version counts as the newest."""
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else (sys.maxsize,)


def is_here(name: str) -> bool:
    """Return whether a package can be imported; a mere folder of that name, which Python would import, is none."""
    if sys.modules.get(name) is not None:
        return loaded(name) is not None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.has_location


def loaded(name: str) -> Any:
    """Return a package if the program has loaded it; None if not, or if that is a mere folder."""
    module = sys.modules.get(name)
    return None if module is None or _is_folder(module) else module


def is_numpy_scalar(kind: type) -> bool:
    """Return whether a type is that of numpy's scalars, which `x.mean()` and `x[0]` are; ml_dtypes' are such, too."""
    numpy = loaded("numpy")
    return numpy is not None and issubclass(kind, numpy.generic)


def load(name: str) -> Any:
    """Import a package. Raises ModuleNotFoundError where there is none, or a mere folder of that name."""
    if "." not in name and not is_here(name):
        spec = importlib.util.find_spec(name) if sys.modules.get(name) is None else sys.modules[name].__spec__
        folders = list(getattr(spec, "submodule_search_locations", None) or ())
        raise ModuleNotFoundError(
            f"No module named {name!r}" + (f": {folders[0]} is a folder without one" if folders else ""), name=name
        )
    return importlib.import_module(name)


def _is_folder(module: object) -> bool:
    return getattr(module, "__file__", None) is None and hasattr(module, "__path__")
