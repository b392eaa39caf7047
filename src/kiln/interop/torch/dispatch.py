"""Native kernels of operators: registering them with PyTorch's dispatcher, which calls them without Python.

Python takes the first calls of a kind, through a second operator that exists only for that. The interface is PyTorch's
stable C interface of version 2.10; where it is missing or behaves otherwise, Python takes all calls.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..._support import fork_safe
from ...base_dsl import packages
from ...base_dsl.diagnostics import DSLBaseError
from ...base_dsl.numeric.meta import TYPES
from ...cute.host.arrays import TORCH_NAMES, dlpack_type
from ..arguments import loading, plan
from ..arguments.torch_layout import ProbeError, tensor_layout
from . import direct_calls, operator_calls, probe, reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .schema import Extent

DIRECT = {
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "included": "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "excluded": "_ZN3c104impl31tls_is_dispatch_keyset_excludedENS_14DispatchKeySetE",
    "has_callbacks": "_ZN2at12hasCallbacksEv",
    "has_modes": "_ZN2at4impl27torch_function_mode_enabledEv",
}
"""C++ symbols that direct calls need, by fields of `direct_calls.Direct`."""
_LOOKING = (
    "Python",
    "PreDispatch",
    "PythonDispatcher",
    "Functionalize",
    "Tracer",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchVmapMode",
)
"""Dispatch keys that are included while something intercepts operators."""


@functools.lru_cache(maxsize=1)
def dispatcher() -> Dispatcher | None:
    """Return PyTorch's dispatcher as native code uses it, or None where Python takes all calls."""
    loading.prepare()
    engine = loading.engine()
    if engine is None:
        return None
    try:
        new = Dispatcher(engine)
        new.probe()
    except (AttributeError, OSError, RuntimeError, TypeError) as failure:
        packages.without("torch dispatcher", failure)
        return None
    return new


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Dispatcher:
    """PyTorch's stable C interface."""

    def __init__(self, engine: Any) -> None:
        folder = Path(torch.__file__).parent / "lib"
        self._library = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
        self._libraries = [self._library, ctypes.CDLL(str(folder / "libc10.so"))]
        functions = {field: self._required(name) for field, name in reader.FUNCTIONS.items()}
        functions["delete_box"] = self._required("torch_delete_stable_ivalue", "_ZdlPv")
        self._engine = engine
        self._addresses = engine.load(operator_calls.operator_library)
        self._table: Any = reader.Torch.from_address(self._addresses[reader.torch.symbol])
        for field, function in functions.items():
            setattr(self._table, field, function)
        self.can_write: bool = self._load_writing()
        """Whether native code may serve operators that write to their inputs."""
        if (folder / "libtorch_cuda.so").exists():
            cuda = ctypes.CDLL(str(folder / "libtorch_cuda.so"))
            self._table.stream = _address(cuda.aoti_torch_get_current_cuda_stream)
        self._table.several = torch.cuda.device_count() > 1
        self._table.cpu = self._library.aoti_torch_device_type_cpu()
        self._table.cuda = self._library.aoti_torch_device_type_cuda()
        self.types: dict[torch.dtype, int] = {}
        """Torch's numbers of its types."""
        for name, name_of_type in TORCH_NAMES.items():
            number_of = self._function(f"aoti_torch_dtype_{name}", f"torch_dtype_{name}")
            kind = dlpack_type(TYPES[name_of_type])
            if number_of is not None and kind >= 0 and hasattr(torch, name) and not name.endswith("_x2"):
                self.types[getattr(torch, name)] = number_of()
                self._table.types[number_of()] = kind
        self._used = 0
        self._lock = fork_safe.lock()

    def _function(self, *names: str) -> Any:
        functions = (getattr(library, name) for name in names for library in self._libraries if hasattr(library, name))
        return next(functions, None)

    def _required(self, *names: str) -> int:
        function = self._function(*names)
        if function is None:
            raise AttributeError(f"PyTorch has no {' or '.join(names)}")
        return _address(function)

    def _load_writing(self) -> bool:
        """Give native code the functions that writing to inputs needs. Returns whether they were proved."""
        try:
            functions = {field: self._required(name) for field, name in reader.WRITING.items()}
            probe.prove_writing(functions)
        except (AttributeError, ProbeError, RuntimeError) as reason:
            packages.without("torch versions", reason)
            return False
        for field, function in functions.items():
            setattr(self._table, field, function)
        return True

    def register(self, name: str, device: str, symbol: str) -> None:
        """Make a native function the kernel of an operator for a device."""
        namespace, _, short = name.partition("::")
        handle = ctypes.c_void_p()
        begin = self._library.aoti_torch_library_init_impl
        add = self._library.torch_library_impl
        add.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64]
        failed = begin(namespace.encode(), device.encode(), b"kiln", 0, ctypes.byref(handle))
        if failed or add(handle, short.encode(), self._addresses[symbol], reader.VERSION):
            raise RuntimeError(f"PyTorch did not take a kernel for {name}")

    def probe(self) -> None:
        """Prove the calling convention by a call of an operator that notes its arguments."""
        library = torch.library.Library("kiln", "FRAGMENT")
        library.define("native_probe(Tensor x, SymInt n, float f, bool b, Tensor? o) -> Tensor")
        self.register("kiln::native_probe", "CPU", operator_calls.torch_probe.symbol)
        x = torch.zeros(3)
        seen = (ctypes.c_uint64 * 8).from_address(self._addresses[operator_calls.seen.symbol])
        result = torch.ops.kiln.native_probe(x, -3, 0.5, True, None)
        real = ctypes.c_double.from_buffer(ctypes.c_uint64(seen[4])).value
        received = (seen[0], seen[1], ctypes.c_int64(seen[3]).value, real, seen[5] & 0xFF, seen[6])
        if received != (5, 1, -3, 0.5, 1, 0) or result.data_ptr() != x.data_ptr():
            raise RuntimeError(f"PyTorch passes arguments in another way: {received}")
        _kept.append(library)

    # -- direct calls ------------------------------------------------------------------------------------

    @functools.cached_property
    def needs_gradients(self) -> Callable[..., bool] | None:
        """A function of arguments: whether the dispatcher would only call the kernel and autograd with them."""
        return self.is_direct and self._engine.function(direct_calls.needs_gradients.symbol)

    @functools.cached_property
    def is_direct(self) -> Callable[..., bool] | None:
        """A function of arguments: whether the dispatcher would only call the kernel with them.

        None where PyTorch's internals could not be proved: then all calls go through the dispatcher.
        """
        try:
            self._load_direct()
        except (AttributeError, OSError, ProbeError, RuntimeError) as reason:
            packages.without("torch direct calls", reason)
            return None
        return self._engine.function(direct_calls.is_direct.symbol)

    def _load_direct(self) -> None:
        layout = tensor_layout()
        if layout is None:
            raise ProbeError("the layout of tensors could not be proved")
        functions = {field: self._required(name) for field, name in DIRECT.items()}
        keys = torch._C.DispatchKeySet
        parse = torch._C._dispatch_key_parse
        autocast = (keys(parse("AutocastCPU")) | keys(parse("AutocastCUDA"))).raw_repr()
        probe.prove_direct_calls(functions, int(parse("Python")), autocast)
        plain = torch._C._dispatch_keys(torch.zeros(1)) | keys(parse("CUDA")) | keys(parse("AutogradCUDA"))
        plain = plain | keys(parse("AutocastCUDA"))
        addresses = self._engine.load(direct_calls.direct_library)
        table: Any = direct_calls.Direct.from_address(addresses[direct_calls.direct.symbol])
        for field, function in functions.items():
            setattr(table, field, function)
        table.types[0] = id(torch.Tensor)
        table.types[1] = id(torch.nn.Parameter)
        table.inner = layout.implementation
        table.bits = layout.keys
        table.foreign = ~plain.raw_repr() & (1 << 64) - 1
        table.autocast = autocast
        table.keys = len(_LOOKING)
        making = torch._C._dynamo.guards  # Inductor's code makes tensors by them
        table.empty_cpu = id(making._empty_strided_cpu)
        table.empty_cuda = id(making._empty_strided_cuda)
        for place, name in enumerate(_LOOKING):
            table.looking[place] = int(parse(name))

    def call_directly(self, holder: bytes) -> Any:
        """Return the function that calls the operator of a holder (`direct_calls.DirectCall`)."""
        return self._engine.function(direct_calls.call_directly.symbol, holder=holder)

    def new(self) -> tuple[int, Any] | None:
        """Return the number and the record of another operator, or None if there are too many."""
        with self._lock:
            number = self._used
            if number == operator_calls.OPERATORS:
                return None
            self._used += 1
        size = ctypes.sizeof(reader.Operator)
        first = self._addresses[operator_calls.operators.symbol]
        return number, reader.Operator.from_address(first + number * size)


_kept: list[Any] = []
_HERE = Path(__file__).parent


class OutputRule(NamedTuple):
    """The rule by which native code makes an output."""

    like: int
    """The input that it is like, if it has no extents."""
    extents: Sequence[Extent] | None
    dtype: torch.dtype


class Kernel:
    """The native kernel of an operator of a jit function."""

    def __init__(
        self,
        function: Any,
        python_name: str,
        inputs: Sequence[str],
        sources: Sequence[tuple[int, int]],
        outputs: int,
        written: Sequence[bool],
    ) -> None:
        """Make the kernel; raises RuntimeError where Python must take the calls.

        `inputs` are the types of inputs in the schema, `sources` where each parameter comes from, `written` which
        inputs the kernel writes to.
        """
        shared = dispatcher()
        too_many = len(inputs) > reader.INPUTS or len(sources) > reader.PARAMETERS or outputs > reader.OUTPUTS
        served = shared is not None and not too_many and all(kind in reader.KINDS for kind in inputs)
        registration = (
            shared.new() if shared is not None and served and (shared.can_write or not any(written)) else None
        )
        if shared is None or registration is None:
            raise RuntimeError("Python takes the calls")
        self._dispatcher = shared
        self._function = function
        number, self._record = registration
        self._symbol = operator_calls.kernels[number].symbol
        self._name = ctypes.create_string_buffer(python_name.encode())
        record = self._record
        record.name = ctypes.addressof(self._name)
        record.function = id(function)
        record.inputs = len(inputs)
        record.output_count = outputs
        record.parameters = len(sources)
        record.report = id(_reported_text)
        record.written = sum(is_written << place for place, is_written in enumerate(written))
        for place, kind in enumerate(inputs):
            record.kinds[place] = reader.KINDS[kind]
        for place, source in enumerate(sources):
            record.sources[place] = source
        self._outputs: dict[int, Any] = {}
        """The outputs of plans, by the identities of these."""
        self._kept: list[Any] = []
        self._lock = fork_safe.lock()
        _kept.append(self)

    def register(self, name: str, device: str) -> None:
        """Make this the kernel of an operator for a device."""
        self._dispatcher.register(name, device, self._symbol)

    def direct(self, defaults: Sequence[object], otherwise: Callable[..., object]) -> Callable[..., Any]:
        """Return the function that calls the kernel directly, or `otherwise` where the dispatcher must take the call.

        `defaults` are those of the last inputs.
        """
        first = self._record.inputs - len(defaults)
        self._kept += [otherwise, *defaults]
        words = [ctypes.addressof(self._record), id(otherwise), *[0] * first, *map(id, defaults)]
        return self._dispatcher.call_directly(plan.words(words))

    def learn(self, rules: Sequence[OutputRule | None]) -> None:
        """Note after a call that Python took how native code makes each output; None where only Python can."""
        held = getattr(self._function, "for_caller", None)
        record = self._record
        if held is None or record.plans == id(held):
            return
        with self._lock:
            self._kept.append(held)  # a call may be using it until the process ends
            self._outputs[id(held[1][2])] = self._described(rules)  # of the plans that the call made or used
            record.plans = 0
            for place, candidate in enumerate(held[3 : 3 + reader.CANDIDATES]):
                rule = self._outputs.get(id(candidate))
                record.outputs[place] = 0 if rule is None else ctypes.addressof(rule)
            record.plans = id(held)

    def _described(self, rules: Sequence[OutputRule | None]) -> Any:
        outputs = (reader.Output * max(len(rules), 1))()
        for output, rule in zip(outputs, rules):
            if rule is None or rule.dtype not in self._dispatcher.types or len(rule.extents or ()) > reader.RANK:
                return None
            output.like = rule.like
            output.rank = -1
            output.type = id(rule.dtype)
            output.dtype = self._dispatcher.types[rule.dtype]
            if rule.extents is not None:
                output.rank = len(rule.extents)
                for place, extent in enumerate(rule.extents):
                    output.extents[place] = tuple(extent)
        self._kept.append(outputs)
        return outputs


def _reported_text(report: Any, record: int) -> bytes | None:
    """Return the text of the error that a call reported, if any; what it printed comes out here."""
    try:
        report(record)
    except BaseException as failure:
        return keep_text(failure)
    return None


_last = threading.local()


def keep_text(failure: BaseException) -> bytes:
    """Return the text of an error, kept until this thread has another one."""
    _last.text = (text_of(failure)).encode() + b"\0"
    return _last.text


def text_of(failure: BaseException) -> str:
    """Return the text that an error has in PyTorch: its own, with Python's frames for errors of other classes."""
    if isinstance(failure, DSLBaseError) or type(failure) is RuntimeError:
        return str(failure)
    frames = [each for each in traceback.extract_tb(failure.__traceback__) if Path(each.filename).parent != _HERE]
    return f"{type(failure).__name__}: {failure}\n{''.join(traceback.format_list(frames))}"
