"""Errors of Python itself in expressions with traced values, with a help that says what to write."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from ...base_dsl.diagnostics import Span
from ...base_dsl.numeric.meta import TYPES
from ...base_dsl.source_context import node_at, statement_at, value_at
from ..tensor.tensor import TracedTensor

Place = tuple[Span | None, types.FrameType | None]
Explanation = tuple[str, str]
"""What is wrong and what to write instead; where the first is empty, it is what Python said."""

_THREE_NUMBERS = (
    "thread_idx",
    "block_idx",
    "block_dim",
    "grid_dim",
    "cluster_idx",
    "cluster_dim",
    "block_in_cluster_idx",
)

_CUDA = {
    "threadIdx": "tx, ty, tz = cute.arch.thread_idx()",
    "blockIdx": "bx, by, bz = cute.arch.block_idx()",
    "blockDim": "x, y, z = cute.arch.block_dim()",
    "gridDim": "x, y, z = cute.arch.grid_dim()",
    "warpSize": "cute.arch.WARP_SIZE",
    "__syncthreads": "cute.arch.sync_threads()",
    "syncthreads": "cute.arch.sync_threads()",
    "__syncwarp": "cute.arch.sync_warp()",
    "atomicAdd": "cute.arch.atomic_add(pointer, value)",
    "tl": "Triton's names have no meaning here: cute.arch, cute.math and tensors take their place",
}

_OF_TENSORS = {
    "numel": "cute.size(x)",
    "dim": "cute.rank(x)",
    "ndim": "cute.rank(x)",
    "zero_": "x.fill(0)",
    "fill_": "x.fill(value)",
    "copy_": "x.store(y.load()), or cute.autovec_copy(y, x)",
    "item": "x[0]",
    "dtype": "x.element_type",
    **dict.fromkeys(
        ("T", "mT", "t", "transpose", "permute"),
        "cute.make_tensor(x.iterator, cute.select(x.layout, [1, 0])) has its modes the other way round",
    ),
    **dict.fromkeys(
        ("reshape", "view", "flatten"),
        "cute.make_tensor(x.iterator, layout) has another layout, cute.logical_divide tiles",
    ),
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "amax", "amin", "prod"),
        "x.load().reduce(cute.ReductionOp.ADD, 0.0, 0) reduces a tile of one thread; across threads: cute.arch.warp_reduction",
    ),
    **dict.fromkeys(
        ("to", "astype", "float", "half", "type"), "x.load().to(dtype) for a tile, x[i].to(dtype) for an element"
    ),
}

_OF_NUMBERS = {
    "item": "a number is used as it is",
    **dict.fromkeys(("astype", "float", "half", "int", "type", "cast"), "v.to(Float32) converts"),
    **dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "pow"), "cute.math has it as a function"),
    "abs": "abs(v)",
}


def type_mistake(text: str, at: Place) -> Explanation | None:
    """Return what to say of a TypeError of Python's."""
    for pattern, explain in _TYPE_MISTAKES:
        match = re.search(pattern, text)
        if match is not None:
            explanation = explain(match, at)
            if explanation is not None:
                return explanation
    return None


def _operands(match: re.Match[str], at: Place) -> Explanation | None:
    operator, *kinds = match.groups()
    if "TracedTensor" in kinds:
        sign = operator.removesuffix("=").split(" ")[0] or operator
        return (
            f"`{operator}` takes numbers, not tensors",
            f"compute with elements, x[i] {sign} y[i], or with the values of tiles, x.load() {sign} y.load()",
        )
    if operator.rstrip("=") in ("<<", ">>", "&", "|", "^", "~") and any(
        kind in TYPES and TYPES[kind].is_float for kind in kinds
    ):
        return "", "a float has no bit operations: convert it, v.to(Int32), or take its bits, v.bitcast(Uint32)"
    if any(kind in ("function", "method", "builtin_function_or_method", "KernelFunction") for kind in kinds):
        return "", "an operand is a function that is not called: write its parentheses"
    if any(kind.startswith("complex") for kind in kinds):
        return "", "numbers of a program are real: keep the real and the imaginary part as two numbers"
    if any(kind in TYPES or kind == "TensorSSA" for kind in kinds):
        return "", "both operands must be numbers, or values of tiles: x[i], x.load()"
    return None


def _special_method(match: re.Match[str], at: Place) -> Explanation | None:
    """Return what to say of a `__bool__` and its like that returns a number of the program."""
    method, kind = match.groups()
    if kind not in TYPES:
        return None
    needed = "number" if method == "index" else method
    return (
        f"__{method}__() returns a {kind} that is only known when the program runs, and Python needs a {needed} at once",
        "test or use what it computes: give the class a method with a name of its own, and call that",
    )


def _subscript(match: re.Match[str], at: Place) -> Explanation | None:
    kind = match[1]
    node = node_at(at[0], ast.Subscript)
    if kind in ("function", "method", "builtin_function_or_method"):
        function = value_at(node.value, at[1]) if node is not None else None
        name = getattr(function, "__name__", "")
        if name and node is not None:
            return f"{ast.unparse(node.value)} is the function {name}, and not what it returns", f"call it: {name}()[0]"
        return "", "call the function first: write its parentheses"
    if kind not in TYPES:
        return None
    match node:
        case ast.Subscript(value=ast.Subscript(value=tensor, slice=first), slice=second):
            whole = f"{ast.unparse(tensor)}[{_without_parentheses(first)}, {_without_parentheses(second)}]"
            return (
                f"{ast.unparse(node.value)} is one number, of type {kind}",
                f"give all coordinates in one index: {whole}",
            )
    return "", f"it is one number, of type {kind}; tensors, tuples and lists have elements"


def _without_parentheses(index: ast.expr) -> str:
    return ", ".join(map(ast.unparse, index.elts)) if isinstance(index, ast.Tuple) else ast.unparse(index)


def _call(match: re.Match[str], at: Place) -> Explanation | None:
    kind = match[1]
    node = node_at(at[0], ast.Call)
    written = ast.unparse(node.func) if node is not None else "it"
    if kind == "TracedTensor":
        arguments = ", ".join(map(ast.unparse, node.args)) if node is not None else "i"
        return f"{written} is a tensor", f"its elements are in square brackets: {written}[{arguments}]"
    if kind == "tuple" or kind in TYPES:
        return (
            "",
            f"{written} is {'a tuple' if kind == 'tuple' else f'a number of type {kind}'}: leave the parentheses away",
        )
    return None


def _arguments(match: re.Match[str], at: Place) -> Explanation | None:
    node = node_at(at[0], ast.Call)
    function = value_at(node.func, at[1]) if node is not None else None
    if node is None or not callable(function) or not str(getattr(function, "__module__", "")).startswith("kiln."):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    bare = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("loc", "ip", "self")]
    return "", f"its signature: {ast.unparse(node.func)}{inspect.Signature(bare)}"


def _one_number(match: re.Match[str], at: Place) -> Explanation | None:
    if match[1] in TYPES:
        return "", f"it is one number, of type {match[1]}; tuples, lists and tensors have elements"
    return None


_TYPE_MISTAKES: tuple[tuple[str, Callable[[re.Match[str], Place], Explanation | None]], ...] = (
    (r"^[\w.]+\(\) (?:missing|takes|got)", _arguments),
    (r"unsupported operand type\(s\) for (.+?): '(\w+)' and '(\w+)'", _operands),
    (r"bad operand type for unary (.+?): '(\w+)'", _operands),
    (r"'(.+?)' not supported between instances of '(\w+)' and '(\w+)'", _operands),
    (r"__(bool|int|float|index|complex)__.* (?:returned|return a).*?(\w+)\)?$", _special_method),
    (r"'(\w+)' object (?:is not subscriptable|does not support item)", _subscript),
    (r"'(\w+)' object is not callable", _call),
    (r"cannot unpack non-iterable (\w+) object", _one_number),
    (r"(?:'|type ')(\w+)'(?: object)? (?:is not iterable|has no len\(\)|is not a container or iterable)", _one_number),
)


def attribute_mistake(failure: AttributeError, at: Place) -> Explanation | None:
    """Return what to say of an attribute that a traced value does not have."""
    owner = failure.obj
    name = failure.name or ""
    node = node_at(at[0], ast.Attribute)
    written = ast.unparse(node.value) if node is not None else ""
    if isinstance(owner, tuple) and name in ("x", "y", "z"):
        if node is not None and isinstance(node.value, ast.Call):
            return f"{written} returns three numbers: x, y, z", f"take them apart: x, y, z = {written}"
        return "", f"a tuple has numbers: [{'xyz'.index(name)}] in place of .{name}"
    what = ""
    if isinstance(owner, TracedTensor):
        what = "tensors in kernels have no methods of numpy and torch"
        if name == "size":
            return (
                f"{what}: size()",
                f"write cute.size({written or 'x'}), or {written or 'x'}.shape[0] for the extent of mode 0",
            )
        hint = _OF_TENSORS.get(name) or _close(name, owner) or "compute with elements x[i], or with tiles: x.load()"
    elif type(owner).__name__ in TYPES and type(owner).__module__.startswith("kiln"):
        what = f"{written or 'the value'} is a number of type {type(owner).__name__}"
        hint = _OF_NUMBERS.get(name) or _close(name, owner) or "cute.math has functions of numbers"
    elif name in ("width", "mlir_type", "is_float", "bytes") and isinstance(owner, (str, type)):
        said = owner if isinstance(owner, type) else repr(owner)
        return f"an element type is expected, and {said} is none", "element types are Kiln's: Float32, Float16, Int32"
    else:
        return None
    return f"{what}: there is no .{name}", hint


def _close(name: str, owner: object) -> str:
    close = difflib.get_close_matches(name, [public for public in dir(owner) if not public.startswith("_")], 1, 0.75)
    return f"did you mean .{close[0]}?" if close else ""


def unpacking_mistake(text: str, at: Place) -> Explanation | None:
    """Return what to say of a ValueError of Python's: a tuple of another length."""
    if "values to unpack" not in text:
        return None
    statement = statement_at(at[0])
    value = statement.value if isinstance(statement, ast.Assign) else None
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) if name in _THREE_NUMBERS:
            return f"{name}() returns three numbers: x, y, z", f"take all of them: x, _, _ = {ast.unparse(value)}"
        case ast.Attribute(value=owner, attr="shape" | "stride" as what):
            unpacked = value_at(owner, at[1])
            modes = getattr(unpacked, "shape", None)
            if isinstance(modes, tuple):
                count = f"{len(modes)} mode{'s' * (len(modes) != 1)}"
                return (
                    f"{ast.unparse(owner)} has {count}: {text}",
                    f"look at cute.rank({ast.unparse(owner)}) before {what}",
                )
    return None


def name_mistake(name: str) -> Explanation | None:
    """Return what to say of a name that the program does not have."""
    if name in _CUDA:
        return f"{name} is not defined", f"in place of CUDA's and Triton's {name}: {_CUDA[name]}"
    kiln: Any = sys.modules["kiln"]
    for module, written in ((kiln, "from kiln import {}"), (kiln.cute, "cute.{}"), (kiln.cute.arch, "cute.arch.{}")):
        if name in dir(module):
            return f"{name} is not defined", f"write {written.format(name)}"
    return None


def array_index(at: Place) -> Explanation | None:
    """Return what to say of an array of numpy or torch that a traced value indexes."""
    node = node_at(at[0], ast.Subscript)
    array = value_at(node.value, at[1]) if node is not None else None
    package = type(array).__module__.partition(".")[0]
    if node is None or package not in ("numpy", "torch"):
        return None
    name = ast.unparse(node.value)
    return (
        f"{name} is an array of {package} outside of the program, indexed by a value that is known when the program runs",
        f"pass it as an argument: {name}: cute.Tensor",
    )
