"""Who may call an exported function, and what the object has to know for each: C, TVM-FFI, PyTorch, XLA."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl import typing as numbers
from ...base_dsl.diagnostics import DSLUserCodeTypeError, error
from ...cute.host.arrays import TORCH_NAMES, dlpack_type
from ..arguments import plan
from ..jax import exported as xla_entry
from ..jax.reader import MAY_BE_CAPTURED
from ..torch import exported as torch_entry
from ..torch import reader as calls_torch
from . import thunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...targets.host.elf.objects import Data, Symbol
    from ..c.signature import Parameter, Signature

NAMES = ("c", "tvm_ffi", "torch", "jax")
_NOT_PASSED = 3
"""The source of a parameter of an operator that nobody passes."""


@dataclasses.dataclass(frozen=True)
class Doors:
    """Which names a function has; an empty one: it has no such door."""

    c: str = ""
    tvm_ffi: str = ""
    torch: str = ""
    """namespace::name"""
    jax: str = ""
    outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters that are results: for PyTorch, how each is made."""
    mutates: Sequence[str] | None = None
    """Those that the kernel writes to; None: all tensors, if there are no outputs."""

    @property
    def name(self) -> str:
        """That of the file's symbols."""
        return self.c or self.tvm_ffi or self.torch.rpartition("::")[2] or self.jax

    @property
    def opened(self) -> list[str]:
        return [name for name in NAMES if getattr(self, name)]

    def check(self, signature: Signature) -> None:
        """Refuse outputs that are none, and what a framework cannot pass."""
        known = {each.name: each for each in signature.parameters}
        for what, given in (("outputs", self.outputs), ("mutates", self.mutates or ())):
            for name in given:
                if name not in known or known[name].kind != "tensor":
                    tensors = [each.name for each in signature.parameters if each.kind == "tensor"]
                    raise _wrong(f"{what} names {name!r}", f"tensors are {', '.join(tensors)}")
        if signature.results[0] != plan.NO_RESULT and (self.torch or self.jax):
            raise _wrong("the function returns a number, which operators do not", "write it to a tensor")
        for name in ("torch", "jax") if self.outputs or self.torch or self.jax else ():
            if getattr(self, name):
                for each in signature.parameters:
                    _kind(each, name)
        if self.torch:
            for name, made in self.outputs.items():
                _output(name, made, self._inputs(signature), known[name])

    def _inputs(self, signature: Signature) -> list[Parameter]:
        """What a framework passes."""
        return [
            each
            for each in signature.parameters
            if each.name not in self.outputs and each.kind not in ("stream", "none", "static")
        ]

    def _is_written(self, given: Parameter) -> bool:
        """Whether PyTorch is told that the kernel writes to what it passes."""
        written = not self.outputs if self.mutates is None else given.name in self.mutates
        return written and _kind(given, "torch").startswith("Tensor") and not given.about.get("readonly")

    def schema(self, signature: Signature) -> str:
        """As PyTorch writes it: scale(Tensor x, float by) -> Tensor"""
        letters, parts = iter("abcdefghijklmnopqrstuvwxyz"), []
        for each in self._inputs(signature):
            kind = _kind(each, "torch")
            if self._is_written(each):
                kind = kind.replace("Tensor", f"Tensor({next(letters)}!)")
            parts.append(f"{kind} {each.name}")
        results = ["Tensor"] * len(self.outputs)
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"{self.torch.rpartition('::')[2]}({', '.join(parts)}) -> {returned}"

    # -- what native code reads ----------------------------------------------------------------------------

    def place_torch(self, data: Data, signature: Signature, on_host: bool, on_gpu: bool) -> Symbol:
        """The record of the operator."""
        native, inputs = calls_torch, self._inputs(signature)
        outputs, parameters = list(self.outputs), signature.parameters
        limits = ((len(inputs), native.INPUTS), (len(outputs), native.OUTPUTS), (len(parameters), native.PARAMETERS))
        if any(count > most for count, most in limits):
            raise _wrong(f"{len(inputs)} inputs and {len(outputs)} outputs are too many", f"PyTorch's door takes {native.INPUTS} and {native.OUTPUTS}")  # fmt: skip
        namespace, _, name = self.torch.rpartition("::")
        door = torch_entry.TorchDoor(devices=torch_entry.ON_HOST * on_host | torch_entry.ON_GPU * on_gpu)
        operator = door.operator
        operator.inputs, operator.made, operator.parameters = len(inputs), len(outputs), len(parameters)
        for place, each in enumerate(inputs):
            operator.kinds[place] = _TORCH_KINDS[_kind(each, "torch")]
            operator.written |= self._is_written(each) << place
        names = [each.name for each in inputs]
        for place, each in enumerate(parameters):
            source = operator.sources[place]
            if each.kind == "stream":
                source.kind = native.STREAM
            elif each.name in outputs:
                source.kind, source.index = native.OUTPUT, outputs.index(each.name)
            elif each.name in names:
                source.kind, source.index = native.INPUT, names.index(each.name)
            else:
                source.kind = _NOT_PASSED
        addresses = {
            "namespace": data.text(namespace), "name": data.text(name), "schema": data.text(self.schema(signature)),
            "kernel": data.symbol(thunks.KERNEL), "meta": data.symbol(thunks.META),
        }  # fmt: skip
        known = {each.name: each for each in parameters}
        if outputs:
            made = [(_output(each, self.outputs[each], inputs, known[each]), {}) for each in outputs]
            addresses["outputs"] = data.records(made)
        types = [
            (
                torch_entry.ElementType(dlpack=dlpack_type(getattr(numbers, ours))),
                {"name": data.text(f"aoti_torch_dtype_{theirs}")},
            )
            for theirs, ours in TORCH_NAMES.items()
            if not theirs.endswith("_x2")
        ]
        addresses["types"], door.type_count = data.records(types), len(types)
        data.records([(calls_torch.Torch(), {})], calls_torch.torch.symbol)
        data.call_at_start(data.symbol(thunks.START))
        return data.records([(door, addresses)])

    def place_xla(self, data: Data, signature: Signature, on_host: bool, on_gpu: bool, prints: bool) -> Symbol:
        """The record of the handler."""
        native, outputs = xla_entry, list(self.outputs)
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
        door = native.XlaDoor(
            passed=passed, made=len(outputs), traits=0 if prints else MAY_BE_CAPTURED, on_host=on_host, on_gpu=on_gpu,
            numbers=sum(source.kind == native.NUMBER for source, _ in sources),
        )  # fmt: skip
        return data.records([(door, {"sources": data.records(sources)} if sources else {})])


_TORCH_KINDS = {
    "Tensor": calls_torch.TENSOR, "Tensor[]": calls_torch.SOME_TENSORS, "SymInt": calls_torch.WHOLE,
    "float": calls_torch.REAL, "bool": calls_torch.TRUTH,
}  # fmt: skip


def _kind(parameter: Parameter, door: str) -> str:
    """PyTorch's type of a parameter; empty for what is not passed."""
    about, kind = parameter.about, parameter.kind
    if kind in ("stream", "none", "static"):
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
        f"the door {door!r} cannot take the argument {parameter.name!r}",
        "it takes tensors, tuples of tensors, integers, booleans, Float32 and Float64",
    )


def _output(name: str, made: Any, inputs: Sequence[Parameter], parameter: Parameter) -> Any:
    """How PyTorch's door makes an output: like an input, or of extents."""
    about, names = parameter.about, [each.name for each in inputs]
    record: Any = calls_torch.Output(rank=-1, dtype=dlpack_type(getattr(numbers, about["type"])))
    if isinstance(made, str):
        if made not in names or inputs[names.index(made)].kind != "tensor":
            raise _wrong(f"the output {name!r} is to be like {made!r}", f"inputs are {', '.join(names)}")
        record.like = names.index(made)
        return record
    if not isinstance(made, (tuple, list)) or len(made) != len(about["shape"]) or len(made) > calls_torch.RANK:
        raise _wrong(
            f"the output {name!r} is to be {made!r}",
            f'the name of an input that it is like, or {len(about["shape"])} extents, each a number, "x.0" (an input\'s axis) or "n" (an input)',
        )
    record.rank = len(made)
    for place, extent in enumerate(made):
        of, _, axis = extent.partition(".") if isinstance(extent, str) else ("", "", "")
        source = inputs[names.index(of)] if of in names else None
        if isinstance(extent, int) and extent >= 0:
            record.extents[place].input, record.extents[place].axis = -1, extent
        elif source is not None and (
            source.kind == "number" if not axis else source.kind == "tensor" and axis.isdigit() and int(axis) < len(source.about["shape"])
        ):  # fmt: skip
            record.extents[place].input, record.extents[place].axis = names.index(of), int(axis or -1)
        else:
            raise _wrong(
                f"the output {name!r} is to have the extent {extent!r}",
                'an extent is a number, an axis of a tensor that is an input ("x.0"), or an int that is one ("n")',
            )
    return record


def _wrong(what: str, hint: str) -> Exception:
    return error(DSLUserCodeTypeError, f"kiln.export: {what}", hint=hint, depth=2)
