"""Entry points of exported functions for C, TVM-FFI, PyTorch and XLA, and the records that native code reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl import typing as numbers
from ...base_dsl.diagnostics import type_error
from ...cute.host.arrays import TORCH_NAMES, dlpack_type
from ..arguments import plan
from ..jax import exported as xla_entry
from ..jax.reader import MAY_BE_CAPTURED
from ..torch import exported as torch_entry
from ..torch import reader
from ..torch.schema import EXTENT_RULE, Input, extents, schema
from . import thunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...targets.host.elf import Data, Symbol
    from ..c.signature import Parameter, Signature

CONVENTIONS = ("c", "tvm_ffi", "torch", "jax")
_NOT_PASSED = ("stream", "none", "static")
"""Kinds of parameters that frameworks do not pass."""


@dataclasses.dataclass(frozen=True)
class EntryPoints:
    """The names of a function for each calling convention; empty if it has no such entry point."""

    c: str = ""
    tvm_ffi: str = ""
    torch: str = ""
    """namespace::name"""
    jax: str = ""
    outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters that are results, and for PyTorch how each is made."""
    mutates: Sequence[str] | None = None
    """Parameters that the kernel writes to; None: all tensors, if there are no outputs."""

    @property
    def name(self) -> str:
        """The name in the symbols of the file."""
        return self.c or self.tvm_ffi or self.torch.rpartition("::")[2] or self.jax

    @property
    def conventions(self) -> list[str]:
        """The conventions that it has entry points for."""
        return [name for name in CONVENTIONS if getattr(self, name)]

    def check(self, signature: Signature) -> None:
        """Refuse outputs that are no tensors, and parameters that a framework cannot pass."""
        by_name = {each.name: each for each in signature.parameters}
        for what, names in (("outputs", self.outputs), ("mutates", self.mutates or ())):
            for name in names:
                if name not in by_name or by_name[name].kind != "tensor":
                    tensors = [each.name for each in signature.parameters if each.kind == "tensor"]
                    raise _wrong(f"{what} names {name!r}", f"tensors are {', '.join(tensors)}")
        if signature.results[0] != plan.NO_RESULT and (self.torch or self.jax):
            raise _wrong("the function returns a number, which operators do not", "write it to a tensor")
        for name in ("torch", "jax") if self.outputs or self.torch or self.jax else ():
            if getattr(self, name):
                for each in signature.parameters:
                    _kind(each, name)
        if self.torch:
            for name, output in self.outputs.items():
                _output(name, output, self._inputs(signature), by_name[name])

    def _inputs(self, signature: Signature) -> list[Parameter]:
        """Return the parameters that a framework passes."""
        passed = [each for each in signature.parameters if each.kind not in _NOT_PASSED]
        return [each for each in passed if each.name not in self.outputs]

    def _is_written(self, parameter: Parameter) -> bool:
        """Return whether the kernel writes to an input, as the schema says."""
        written = not self.outputs if self.mutates is None else parameter.name in self.mutates
        return written and _kind(parameter, "torch").startswith("Tensor") and not parameter.about.get("readonly")

    def schema(self, signature: Signature) -> str:
        """Return PyTorch's schema: scale(Tensor x, float by) -> Tensor"""
        inputs = [Input(_kind(each, "torch"), each.name, self._is_written(each)) for each in self._inputs(signature)]
        return self.torch.rpartition("::")[2] + schema(inputs, len(self.outputs))

    # -- records for native code -----------------------------------------------------------------------------

    def place_torch(self, data: Data, signature: Signature, on_host: bool, on_gpu: bool) -> Symbol:
        """Place the record of PyTorch's operator."""
        inputs = self._inputs(signature)
        outputs = list(self.outputs)
        parameters = signature.parameters
        limits = ((len(inputs), reader.INPUTS), (len(outputs), reader.OUTPUTS), (len(parameters), reader.PARAMETERS))
        if any(count > most for count, most in limits):
            most = f"operators of PyTorch have at most {reader.INPUTS} and {reader.OUTPUTS}"
            raise _wrong(f"{len(inputs)} inputs and {len(outputs)} outputs are too many", most)
        namespace, _, name = self.torch.rpartition("::")
        record = torch_entry.Registration(devices=torch_entry.ON_HOST * on_host | torch_entry.ON_GPU * on_gpu)
        operator = record.operator
        operator.inputs = len(inputs)
        operator.output_count = len(outputs)
        operator.parameters = len(parameters)
        for place, each in enumerate(inputs):
            operator.kinds[place] = reader.KINDS[_kind(each, "torch")]
            operator.written |= self._is_written(each) << place
        names = [each.name for each in inputs]
        for place, each in enumerate(parameters):
            source = operator.sources[place]
            if each.kind == "stream":
                source.kind = reader.STREAM
            elif each.name in outputs:
                source.kind = reader.OUTPUT
                source.index = outputs.index(each.name)
            elif each.name in names:
                source.kind = reader.INPUT
                source.index = names.index(each.name)
            else:
                source.kind = reader.NOT_PASSED
        addresses = {
            "namespace": data.text(namespace),
            "name": data.text(name),
            "schema": data.text(self.schema(signature)),
            "kernel": data.symbol(thunks.KERNEL),
            "meta": data.symbol(thunks.META),
        }
        by_name = {each.name: each for each in parameters}
        if outputs:
            placed = [(_output(each, self.outputs[each], inputs, by_name[each]), {}) for each in outputs]
            addresses["outputs"] = data.records(placed)
        types: list[tuple[Any, dict[str, Symbol]]] = []
        for theirs, ours in TORCH_NAMES.items():
            if not theirs.endswith("_x2"):
                element = torch_entry.ElementType(dlpack=dlpack_type(getattr(numbers, ours)))
                types.append((element, {"name": data.text(f"aoti_torch_dtype_{theirs}")}))
        addresses["types"] = data.records(types)
        record.type_count = len(types)
        data.records([(reader.Torch(), {})], reader.torch.symbol)
        data.call_at_start(data.symbol(thunks.START))
        return data.records([(record, addresses)])

    def place_xla(self, data: Data, signature: Signature, on_host: bool, on_gpu: bool, prints: bool) -> Symbol:
        """Place the record of XLA's handler."""
        native = xla_entry
        outputs = list(self.outputs)
        sources: list[tuple[Any, dict[str, Symbol]]] = []
        passed = 0
        for each in signature.parameters:
            kind = _kind(each, "jax")
            if each.name in outputs:
                sources.append((native.Source(kind=native.MADE, index=outputs.index(each.name)), {}))
            elif kind == "Tensor":
                sources.append((native.Source(kind=native.PASSED, index=passed), {}))
                passed += 1
            elif kind == "Tensor[]":
                count = len(each.about["elements"])
                sources.append((native.Source(kind=native.GROUP, index=count), {}))
                sources += [(native.Source(kind=native.PASSED, index=passed + n), {}) for n in range(count)]
                passed += count
            elif each.kind == "number":
                length = len(each.name.encode())
                sources.append((native.Source(kind=native.NUMBER, length=length), {"name": data.text(each.name)}))
            else:
                sources.append((native.Source(kind=native.STREAM if each.kind == "stream" else native.NOTHING), {}))
        record = native.XlaFunction(
            passed=passed,
            outputs=len(outputs),
            traits=0 if prints else MAY_BE_CAPTURED,
            on_host=on_host,
            on_gpu=on_gpu,
            numbers=sum(source.kind == native.NUMBER for source, _ in sources),
        )
        return data.records([(record, {"sources": data.records(sources)} if sources else {})])


def _kind(parameter: Parameter, convention: str) -> str:
    """Return PyTorch's type of a parameter; empty for one that is not passed."""
    about = parameter.about
    kind = parameter.kind
    if kind in _NOT_PASSED:
        return ""
    if kind == "tensor":
        return "Tensor"
    if kind == "tuple" and about["elements"] and all(each["kind"] == "tensor" for each in about["elements"]):
        return "Tensor[]"
    if kind == "number":
        typed = getattr(numbers, about["type"])
        if typed is numbers.Boolean:
            return "bool"
        if typed.is_integer:
            return "SymInt"
        if typed.width in (32, 64):
            return "float"
    raise _wrong(
        f"the calling convention {convention!r} cannot pass the argument {parameter.name!r}",
        "it takes tensors, tuples of tensors, integers, booleans, Float32 and Float64",
    )


def _output(name: str, described: object, inputs: Sequence[Parameter], parameter: Parameter) -> Any:
    """Return how PyTorch makes an output: like an input, or of extents."""
    rank = len(parameter.about["shape"])
    kinds = {each.name: _kind(each, "torch") for each in inputs}
    record: Any = reader.Output(rank=-1, dtype=dlpack_type(getattr(numbers, parameter.about["type"])))
    if isinstance(described, str):
        if kinds.get(described) != "Tensor":
            raise _wrong(f"the output {name!r} is to be like {described!r}", f"inputs are {', '.join(kinds)}")
        record.like = list(kinds).index(described)
        return record
    if not isinstance(described, (tuple, list)) or len(described) != rank or rank > reader.RANK:
        extents_hint = f'{rank} extents, each a number, "x.0" (an axis of an input) or "n" (an input)'
        raise _wrong(
            f"the output {name!r} is to be {described!r}", f"name an input that it is like, or pass {extents_hint}"
        )
    ranks = {each.name: len(each.about.get("shape", ())) for each in inputs}
    places = extents(described, kinds, ranks)
    if isinstance(places, str):
        raise _wrong(f"the output {name!r} {places}", EXTENT_RULE)
    record.rank = rank
    for place, extent in enumerate(places):
        record.extents[place] = tuple(extent)
    return record


def _wrong(what: str, hint: str) -> Exception:
    return type_error(f"kiln.export: {what}", hint)
