"""Native kernels of operators: PyTorch's dispatcher calls them without Python (`calls/caller/torch.py`).

Python takes the first calls of a kind, through a second operator that is only there for that. The interface is PyTorch's stable C interface of version
2.10; where it is not there, or not as expected, Python takes all calls.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._support import fork_safe
from ...base_dsl import packages
from ...base_dsl.numeric.meta import TYPES
from ...cute.host.arrays import TORCH_NAMES, dlpack_type, torch_bits
from ..arguments import loading, plan
from . import direct_calls as torch_direct
from . import reader as native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_VERSION = 2 << 56 | 10 << 48
"""Of the interface that kernels are written for."""
_FUNCTIONS = {
    "data": "aoti_torch_get_data_ptr", "rank": "aoti_torch_get_dim", "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides", "dtype": "aoti_torch_get_dtype", "device": "aoti_torch_get_device_type",
    "device_number": "aoti_torch_get_device_index", "empty": "aoti_torch_empty_strided",
    "delete_tensor": "aoti_torch_delete_tensor_object", "list_size": "torch_list_size",
    "list_item": "torch_list_get_item", "delete_list": "torch_delete_list", "call": "aoti_torch_call_dispatcher",
    "check": "aoti_torch_check", "current_device": "aoti_torch_get_current_device_index",
}  # fmt: skip
KINDS = {
    "Tensor": native.TENSOR, "Tensor?": native.MAYBE_TENSOR, "Tensor[]": native.SOME_TENSORS, "SymInt": native.WHOLE,
    "float": native.REAL, "bool": native.TRUTH,
}  # fmt: skip
"""Types of schemas that native code reads."""
_DIRECT = {
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv", "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "included": "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "excluded": "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE",
    "has_callbacks": "_ZN2at12hasCallbacksEv", "has_modes": "_ZN2at4impl27torch_function_mode_enabledEv",
}  # fmt: skip
"""As `torch_direct.Direct`."""
_LOOKING = (
    "Python", "PreDispatch", "PythonDispatcher", "Functionalize", "Tracer", "FuncTorchDynamicLayerFrontMode",
    "FuncTorchVmapMode",
)  # fmt: skip
Extent = tuple[int, int]
"""As `native.Extent`."""


@functools.lru_cache(maxsize=1)
def door() -> Door | None:
    """PyTorch's dispatcher, as native code uses it; None where Python has to do."""
    loading.prepare()
    engine = loading.engine()
    if engine is None:
        return None
    try:
        made = Door(engine)
        made.probe()
    except (AttributeError, OSError, RuntimeError, TypeError) as failure:
        packages.without("torch dispatcher", failure)
        return None
    return made


class Door:
    """PyTorch's stable C interface."""

    def __init__(self, engine: Any) -> None:
        folder = Path(torch.__file__).parent / "lib"
        self._library = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
        functions = {field: self._pointer(name) for field, name in _FUNCTIONS.items()}
        functions["delete_box"] = self._pointer("torch_delete_stable_ivalue", "_ZdlPv")
        self._addresses = engine.load(native.doors)
        self._known: Any = native.Torch.from_address(self._addresses[native.torch.symbol])
        for field, found in functions.items():
            setattr(self._known, field, found)
        self.can_write = True
        """Whether native code may serve operators that write to their inputs."""
        for field, name in native.WRITING.items():
            found = self._function(name)
            if found is None:
                self.can_write = False
                packages.without("torch versions", f"there is no {name}")
            setattr(self._known, field, found and ctypes.cast(found, ctypes.c_void_p).value)
        if (folder / "libtorch_cuda.so").exists():
            cuda = ctypes.CDLL(str(folder / "libtorch_cuda.so"))
            self._known.stream = ctypes.cast(cuda.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value
        self._known.several = torch.cuda.device_count() > 1
        self._known.cpu = self._library.aoti_torch_device_type_cpu()
        self._known.cuda = self._library.aoti_torch_device_type_cuda()
        self.types: dict[torch.dtype, int] = {}
        """Torch's numbers of its types."""
        for name, known in TORCH_NAMES.items():
            tell = self._function(f"aoti_torch_dtype_{name}", f"torch_dtype_{name}")
            kind = dlpack_type(TYPES[known])
            if tell is not None and kind >= 0 and hasattr(torch, name) and not name.endswith("_x2"):
                number = tell()
                self.types[getattr(torch, name)] = number
                self._known.types[number] = kind
        self._used = 0
        self._lock = fork_safe.lock()
        self._engine = engine

    def _function(self, *names: str) -> Any:
        return next((getattr(self._library, name) for name in names if hasattr(self._library, name)), None)

    def _pointer(self, *names: str) -> int:
        found = self._function(*names)
        if found is None:
            raise AttributeError(f"PyTorch has no {' or '.join(names)}")
        return ctypes.cast(found, ctypes.c_void_p).value or 0

    def register(self, name: str, device: str, symbol: str) -> None:
        """Make a native function the kernel of an operator."""
        namespace, _, short = name.partition("::")
        handle = ctypes.c_void_p()
        begin, add = self._library.aoti_torch_library_init_impl, self._library.torch_library_impl
        add.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64]
        failed = begin(namespace.encode(), device.encode(), b"kiln", 0, ctypes.byref(handle))
        if failed or add(handle, short.encode(), self._addresses[symbol], _VERSION):
            raise RuntimeError(f"PyTorch did not take a kernel for {name}")

    def probe(self) -> None:
        """Look at a call of an operator that notes what it is given."""
        library = torch.library.Library("kiln", "FRAGMENT")
        library.define("native_probe(Tensor x, SymInt n, float f, bool b, Tensor? o) -> Tensor")
        self.register("kiln::native_probe", "CPU", native.torch_probe.symbol)
        x = torch.zeros(3)
        seen = (ctypes.c_uint64 * 8).from_address(self._addresses[native.seen.symbol])
        result = torch.ops.kiln.native_probe(x, -3, 0.5, True, None)
        real = ctypes.c_double.from_buffer(ctypes.c_uint64(seen[4])).value
        found = (seen[0], seen[1], ctypes.c_int64(seen[3]).value, real, seen[5] & 0xFF, seen[6])
        if found != (5, 1, -3, 0.5, 1, 0) or result.data_ptr() != x.data_ptr():
            raise RuntimeError(f"PyTorch passes arguments in another way: {found}")
        _kept.append(library)

    @functools.cached_property
    def asks_for_gradients(self) -> Callable[..., bool] | None:
        """A function of arguments: whether the dispatcher would only call the kernel with them, but for gradients."""
        return self.is_direct and self._engine.function(torch_direct.asks_for_gradients.symbol)

    @functools.cached_property
    def is_direct(self) -> Callable[..., bool] | None:
        """A function of arguments: whether the dispatcher would only call the kernel with them. None where that cannot be told."""
        try:
            self._load_direct()
        except (AttributeError, OSError, RuntimeError) as missing:
            packages.without("torch direct calls", missing)
            return None
        return self._engine.function(torch_direct.is_direct.symbol)

    def _load_direct(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        libraries = [ctypes.CDLL(str(folder / f"lib{name}.so")) for name in ("c10", "torch_cpu")]
        functions = {
            field: next(getattr(library, name) for library in libraries if hasattr(library, name))
            for field, name in _DIRECT.items()
            if any(hasattr(library, name) for library in libraries)
        }
        bits = torch_bits()
        if len(functions) < len(_DIRECT) or bits is None:
            raise RuntimeError(f"of {sorted(_DIRECT)} there are {sorted(functions)}")
        keys, parse = torch._C.DispatchKeySet, torch._C._dispatch_key_parse
        plain = torch._C._dispatch_keys(torch.zeros(1)) | keys(parse("CUDA")) | keys(parse("AutogradCUDA"))
        plain = plain | keys(parse("AutocastCUDA"))
        addresses = self._engine.load(torch_direct.calling)
        known: Any = torch_direct.Direct.from_address(addresses[torch_direct.direct.symbol])
        for field, function in functions.items():
            setattr(known, field, ctypes.cast(function, ctypes.c_void_p).value)
        known.types[0], known.types[1] = id(torch.Tensor), id(torch.nn.Parameter)
        known.inner, known.bits, _ = bits
        known.foreign = ~plain.raw_repr() & (1 << 64) - 1
        known.autocast = (keys(parse("AutocastCPU")) | keys(parse("AutocastCUDA"))).raw_repr()
        known.not_foreseen, known.keys = id(NotImplemented), len(_LOOKING)
        making = torch._C._dynamo.guards  # what Inductor's code makes tensors by
        known.empty_cpu, known.empty_cuda = id(making._empty_strided_cpu), id(making._empty_strided_cuda)
        for place, name in enumerate(_LOOKING):
            known.looking[place] = int(parse(name))

    def call_directly(self, holder: bytes) -> Any:
        """The function that makes calls of an operator, of which `holder` tells (`torch_direct.Called`)."""
        return self._engine.function(torch_direct.call_directly.symbol, holder=holder)

    def new(self) -> tuple[int, Any] | None:
        """The symbol's number and the record of another operator; None if there are too many."""
        with self._lock:
            number = self._used
            if number == native.OPERATORS:
                return None
            self._used += 1
        size = ctypes.sizeof(native.Operator)
        return number, native.Operator.from_address(self._addresses[native.operators.symbol] + number * size)


_kept: list[Any] = []
_HERE = Path(__file__).parent


class Kernel:
    """The native kernel of an operator of a jit function."""

    def __init__(
        self, function: Any, python_name: str, inputs: Sequence[str], sources: Sequence[tuple[int, int]], outputs: int,
        written: Sequence[bool],
    ) -> None:  # fmt: skip
        """Types of the inputs as in the schema; where each parameter comes from; how many outputs there are; which inputs are written to. Raises RuntimeError where there is none."""
        found = door()
        too_many = len(inputs) > native.INPUTS or len(sources) > native.PARAMETERS or outputs > native.OUTPUTS
        served = found is not None and not too_many and all(kind in KINDS for kind in inputs)
        made = found.new() if found is not None and served and (found.can_write or not any(written)) else None
        if found is None or made is None:
            raise RuntimeError("Python takes the calls")
        self._door, self._function = found, function
        number, self._record = made
        self._symbol = native.kernels[number].symbol
        self._name = ctypes.create_string_buffer(python_name.encode())
        record = self._record
        record.name, record.function = ctypes.addressof(self._name), id(function)
        record.inputs, record.made, record.parameters = len(inputs), outputs, len(sources)
        record.report = id(_told)
        record.written = sum(is_written << place for place, is_written in enumerate(written))
        for place, kind in enumerate(inputs):
            record.kinds[place] = KINDS[kind]
        for place, (kind, index) in enumerate(sources):
            record.sources[place].kind, record.sources[place].index = kind, index
        self._outputs: dict[int, Any] = {}
        """What was found of candidates, by their identities."""
        self._kept: list[Any] = []
        self._lock = fork_safe.lock()
        _kept.append(self)

    def register(self, name: str, device: str) -> None:
        """Make it the kernel of an operator for a device."""
        self._door.register(name, device, self._symbol)

    def direct(self, defaults: Sequence[Any]) -> Callable[..., Any] | None:
        """The function of a call's arguments that makes it, or returns NotImplemented; `defaults` of the last inputs. None where there is none."""
        if self._door.is_direct is None:
            return None
        first = self._record.inputs - len(defaults)
        self._kept += defaults
        return self._door.call_directly(plan.words([ctypes.addressof(self._record), *[0] * first, *map(id, defaults)]))

    def learn(self, made: Sequence[tuple[int, Sequence[Extent] | None, torch.dtype] | None]) -> None:
        """After a call that Python took: of each output the input it is like, its extents if it is not like one, and its type; None where only Python can make it."""
        held = getattr(self._function, "for_caller", None)
        record = self._record
        if held is None or record.held == id(held):
            return
        with self._lock:
            self._kept.append(held)  # a call may be using it until the process ends
            self._outputs[id(held[3])] = self._described(made)
            record.held = 0
            for place, candidate in enumerate(held[3 : 3 + native.CANDIDATES]):
                found = self._outputs.get(id(candidate))
                record.outputs[place] = 0 if found is None else ctypes.addressof(found)
            record.held = id(held)

    def _described(self, made: Sequence[Any]) -> Any:
        outputs = (native.Output * max(len(made), 1))()
        for output, found in zip(outputs, made):
            if found is None or found[2] not in self._door.types:
                return None
            like, extents, dtype = found
            output.like, output.rank, output.dtype, output.type = like, -1, self._door.types[dtype], id(dtype)
            if extents is not None:
                if len(extents) > native.RANK:
                    return None
                output.rank = len(extents)
                for place, (index, axis) in enumerate(extents):
                    output.extents[place].input, output.extents[place].axis = index, axis
        self._kept.append(outputs)
        return outputs


def _told(report: Any, record: int) -> bytes | None:
    """What went wrong in a call, if anything: text that was printed comes out here."""
    try:
        report(record)
    except BaseException as failure:
        return keep_text(failure)
    return None


_said = threading.local()


def keep_text(failure: BaseException) -> bytes:
    """The text of an error, which stays until this thread has another one."""
    _said.text = (text_of(failure)).encode() + b"\0"
    return _said.text


def text_of(failure: BaseException) -> str:
    """What is told of an error elsewhere."""
    from ...base_dsl.diagnostics import DSLBaseError

    if isinstance(failure, DSLBaseError) or type(failure) is RuntimeError:
        return str(failure)
    frames = [each for each in traceback.extract_tb(failure.__traceback__) if Path(each.filename).parent != _HERE]
    return f"{type(failure).__name__}: {failure}\n{''.join(traceback.format_list(frames))}"
