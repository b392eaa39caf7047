"""Dialects, types and operations as Python classes: MLIR gets them as one text of IRDL, lowerings as typed views.

The bindings have such classes, too (`kiln.mlir.ext`), but importing them takes a process 50 ms.
"""

# No `from __future__ import annotations` here or in the dialects: fields are read off the annotations, as objects.

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..base_dsl.trace import emit, emit_value
from ..hardware.engines import Engine
from ..hardware.features import Feature
from ..mlir import context, find, ir, load_irdl, register_type

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..ptx.form import Form

    _T = TypeVar("_T")

    class Operand(Generic[_T]):
        """An operand of an operation; on a view, its value."""

        def __get__(self, view: Any, kind: Any = None) -> Any: ...

        def __set__(self, view: Any, value: Any) -> None: ...

    class Operands(Operand[_T]):
        """A variadic operand; on a view, the list of its values."""

    class Result(Operand[_T]):
        """A result of an operation."""

    class OptionalAttr(Operand[_T]):
        """An optional attribute; on a view, its value or None, and for booleans whether it is there."""

else:

    class _Kind:
        def __init__(self, part: str) -> None:
            self.part = part

        def __getitem__(self, constraint: Any) -> "tuple[_Kind, Any]":
            return self, constraint

    Operand, Operands, Result, OptionalAttr = map(_Kind, ("operand", "variadic", "result", "optional"))


class Choice(NamedTuple):
    """The constraint of an attribute that is one of several values."""

    base: Any
    values: "tuple[str | int, ...]"


class _NoMemoryEffect(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: Any) -> None:
        pass


class _AlwaysSpeculatable(ir.ConditionallySpeculatable):
    @staticmethod
    def get_speculatability(op: Any) -> Any:
        return ir.Speculatability.Speculatable


Build = Callable[..., Any]
"""`OpView.build` of an operation: adds one, and returns its result, if it has one."""
PURE = (_NoMemoryEffect, _AlwaysSpeculatable)
"""The traits of an operation that touches no memory, and may be removed or repeated."""


class Alias(NamedTuple):
    """The operand whose memory a result leads to, and how."""

    operand: str
    how: str = "same"
    """`same`: the result is the same address, as a pointer or a tensor. `offset`: it lies further on by the operand
    `offset`. `integer`: an integer is the address, or was. `peer`: it is the same place in another CTA. `descriptor`:
    the result describes the memory, as a matrix descriptor or a tensor map."""


class Access(NamedTuple):
    """Memory that an operation reads or writes, in each thread that executes it."""

    operand: str
    """The operand that leads to it: a pointer, a memref, a descriptor, a tensor map or an address in tensor memory."""
    bytes: "int | str | None" = None
    """How many bytes from there on: a number, or the operand or attribute that has it. None: those of `value`, or
    unknown."""
    value: str = ""
    """The operand that is stored, or the result that is loaded, if they are registers."""


Accesses: TypeAlias = "Access | str | Sequence[Access | str]"


def _accesses(stated: Accesses) -> "tuple[Access, ...]":
    each = (stated,) if isinstance(stated, (Access, str)) else stated
    return tuple(Access(one) if isinstance(one, str) else one for one in each)


DECLARED: "dict[str, type[OpView]]" = {}
"""The declarations of the operations of all dialects that were imported, by name."""
UNSTATED: Any = object()
"""What a declaration has where it leaves a question open."""
ORDERS = {
    "accesses": "what the thread did before with what it does after",
    "warp": "what threads of the warp did before with what others do after",
    "cta": "what threads of the CTA did before with what others do after",
    "cluster": "what threads of the cluster did before with what others do after",
    "grid": "what earlier grids did, and what later ones do",
    "mbarrier": "what was done before arrivals at an mbarrier with what is done after its phase",
    "place": "what was done before a release with what is done after an acquire of the same place",
}
"""What an operation orders, as `orders` says it."""
CONVERGED = {
    "mask": "the threads whose bits are set in `mask`",
    "warp": "all threads of the warp",
    "aligned": "all threads of the warp, where the attribute `aligned` says so",
    "warpgroup": "all threads of the warpgroup",
}
"""Who executes an operation together, as `converged` says it."""
VARIES = {
    "thread": "threads of a warp get different results",
    "warp": "warps get different results, the threads of one the same",
    "cta": "CTAs get different results, the threads of one the same",
    "": "all threads get the same result",
}
"""Who gets different results where the operands are the same, as `varies` says it."""


def attribute_of(value: "str | int | bool") -> ir.Attribute:
    """Return the attribute of a string, a 32-bit integer or a boolean."""
    if isinstance(value, str):
        return ir.StringAttr.get(value, context())
    if isinstance(value, bool):
        return ir.BoolAttr.get(value, context())
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32, context()), value)


@functools.lru_cache(maxsize=4096, typed=True)  # typed: True is no 1
def attributes(**values: "str | int | bool | None") -> "dict[str, ir.Attribute] | None":
    """Return texts, 32-bit numbers and booleans as attributes, except those that are None. The result is shared."""
    return {name: attribute_of(value) for name, value in values.items() if value is not None} or None


# --- views -----------------------------------------------------------------------------------------------------------


class _OperandField:
    """The descriptor of an operand that stands at a fixed place."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __get__(self, view: Any, kind: Any = None) -> ir.Value:
        return view.operation.operands[self.place]

    def __set__(self, view: Any, value: ir.Value) -> None:
        view.operation.operands[self.place] = value


def _variadic(place: int, is_only: bool) -> property:
    """Return the property of a variadic operand: the last operands, or a segment where there are several."""

    def read(view: Any) -> "list[ir.Value]":
        operands = list(view.operation.operands)
        if is_only:
            return operands[place:]
        sizes = list(view.operation.attributes["operandSegmentSizes"])
        first = sum(sizes[:place])
        return operands[first : first + sizes[place]]

    return property(read)


def _attribute(name: str, constraint: Any, optional: bool) -> property:
    """Return the property of an attribute, as a Python value."""

    def write(view: Any, value: Any) -> None:
        if value is None:
            del view.operation.attributes[name]
        else:
            view.operation.attributes[name] = attribute_of(value)

    if optional and constraint in (ir.BoolAttr, ir.UnitAttr):
        return property(lambda view: name in view.operation.attributes, write)
    if constraint is ir.DenseI32ArrayAttr:
        convert: Any = tuple
    elif constraint is ir.ArrayAttr:
        convert = lambda attribute: tuple(element.value for element in attribute)
    else:
        convert = lambda attribute: attribute.value
    if not optional:
        return property(lambda view: convert(view.operation.attributes[name]))

    def read(view: Any) -> Any:
        attributes = view.operation.attributes
        return convert(attributes[name]) if name in attributes else None

    return property(read, write)


class OpView:
    """Base of the operations of a dialect (`Cute.Operation`): a class declares an operation, an instance is a view of
    one.

    `name` is the operation's name without that of its dialect, `traits` are interfaces, and `prefix` is the prefix of
    its optional attributes in the IR. A view reads operands, results and attributes by their declared names.

    The other keywords say what passes, targets and the sanitizer ask of it:

    - `alias`: which operand's memory the result leads to: an `Alias`, the name of an operand with the same address, or
      None.
    - `reads`, `writes`: the memory that it accesses, as an `Access` or the name of an operand, or several.
    - `engine`: the engine that carries it out while the thread goes on. It is complete when the `mbarrier` says so, or
      when the operation that `awaits` the engine has seen the group that one that `commits` made.
    - `mbarrier`: the operand that is an mbarrier, at which it arrives, or whose phase it tests.
    - `orders`: which accesses it orders, one of `ORDERS`; `waits`: whether a thread may wait in it for others.
    - `converged`: who executes it together, one of `CONVERGED`.
    - `varies`: who gets different results where the operands are the same, one of `VARIES`.
    - `stays`: why an operation that says nothing of all this is neither removed nor repeated.
    - `ptx`: the form of an operation that is one instruction, with the same names of fields and operands, or several
      forms for different types of operands; `feature`: what it needs of a GPU.
    """

    dialect: "type[Dialect]"
    OPERATION_NAME: str
    OPERANDS: "dict[str, Any]"
    """Constraints by name; the name of a variadic operand ends in `...`."""
    RESULTS: "dict[str, Any]"
    ATTRIBUTES: "dict[str, Any]"
    OPTIONAL: "dict[str, Any]"
    """Optional attributes, by their names in the IR."""
    TRAITS: "Sequence[Any]"
    WAITS: bool
    """Whether a thread may wait in it for others."""
    ALIAS: "Alias | None"
    """The operand whose memory the result leads to."""
    READS: "tuple[Access, ...]"
    WRITES: "tuple[Access, ...]"
    ENGINE: "Engine | None"
    """What carries it out while the thread goes on."""
    COMMITS: "tuple[Engine, ...]"
    """The engines whose operations so far become a group."""
    AWAITS: "tuple[Engine, ...]"
    """The engines for whose operations it waits."""
    MBARRIER: str
    ORDERS: str
    CONVERGED: str
    VARIES: str
    STAYS: str
    PTX: "tuple[Form, ...]"
    """The forms of the instruction that it is; none if it is more than one."""
    FEATURE: "Feature | None"
    """What it needs of a GPU."""
    takes_more_operands: bool
    """Whether its last operand is variadic."""
    Types: Any
    """A named tuple of the types of all operands but variadic ones."""

    __slots__ = ("operation", "types")

    def __init__(self, operation: Any, types: Any = None) -> None:
        self.operation: Any = operation
        self.types: Any = types
        """The types that operands had in the dialect, for a handler that asked for them."""

    def needs(self) -> "Iterator[tuple[Feature, str]]":
        """Yield features that it needs of a GPU, each with a name of what needs it, or nothing for the feature's own."""
        if self.FEATURE is not None:
            yield self.FEATURE, ".".join(self.PTX[0].opcode) if self.PTX else ""

    @classmethod
    def of(cls, operation: Any) -> "Self | None":
        """Return a view of an operation of this kind, None for others."""
        return cls(operation) if operation.name == cls.OPERATION_NAME else None

    @classmethod
    def making(cls, value: Any) -> "Self | None":
        """Return a view of the operation of this kind that makes a value, None if none does."""
        owner = value.owner
        return None if isinstance(owner, ir.Block) else cls.of(owner.operation)

    @classmethod
    def all_in(cls, root: Any) -> "list[Self]":
        """Return views of all operations of this kind inside an operation."""
        return [cls(operation) for operation in find(root, (cls.OPERATION_NAME,))]

    @classmethod
    def build(cls, *fields: Any, type_: Any = None, **named: Any) -> Any:
        """Add an operation of this kind at the insertion point of the trace, and return its result, if it has one.

        `fields` are its operands, then its attributes, in the order in which the class declares them; attributes may
        also be given by name. Optional attributes that are None or False are left out. `type_` is the type of the
        result where the class does not fix it.
        """
        count = len(fields) if cls.takes_more_operands else len(cls.OPERANDS)
        if len(fields) > count:
            named.update(zip((*cls.ATTRIBUTES, *cls.OPTIONAL), fields[count:]))
        if named and cls.OPTIONAL:
            named = {name: None if value is False and name in cls.OPTIONAL else value for name, value in named.items()}
        attrs = attributes(**named) if named else None
        if not cls.RESULTS:
            return emit(cls.OPERATION_NAME, (), fields[:count], attrs)
        return emit_value(cls.OPERATION_NAME, type_ or _fixed_type(cls), fields[:count], attrs)

    @property
    def location(self) -> ir.Location:
        return self.operation.location

    @property
    def attributes(self) -> Any:
        return self.operation.attributes

    @property
    def parent(self) -> Any:
        return self.operation.parent

    def __init_subclass__(
        cls,
        name: str = "",
        traits: "Sequence[Any]" = (),
        prefix: str = "",
        waits: bool = False,
        alias: "Alias | str | None" = UNSTATED,
        reads: Accesses = (),
        writes: Accesses = (),
        engine: "Engine | None" = None,
        commits: "Sequence[Engine]" = (),
        awaits: "Sequence[Engine]" = (),
        mbarrier: str = "",
        orders: str = "",
        converged: str = "",
        varies: str = UNSTATED,
        stays: str = "",
        ptx: "Form | tuple[Form, ...]" = (),
        feature: "Feature | None" = None,
    ) -> None:
        if not name:
            return
        cls.WAITS = waits
        cls.ALIAS = Alias(alias) if isinstance(alias, str) else alias
        cls.READS = _accesses(reads)
        cls.WRITES = _accesses(writes)
        cls.ENGINE = engine
        cls.COMMITS = tuple(commits)
        cls.AWAITS = tuple(awaits)
        cls.MBARRIER = mbarrier
        cls.ORDERS = orders
        cls.CONVERGED = converged
        cls.VARIES = varies
        cls.STAYS = stays
        cls.PTX = ptx if isinstance(ptx, tuple) else (ptx,)
        cls.FEATURE = feature
        cls.OPERATION_NAME = f"{cls.dialect.DIALECT_NAMESPACE}.{name}"
        cls.OPERANDS = {}
        cls.RESULTS = {}
        cls.ATTRIBUTES = {}
        cls.OPTIONAL = {}
        cls.TRAITS = traits
        for owner in reversed(cls.__mro__):
            if owner is not OpView:
                for field, annotation in inspect.get_annotations(owner).items():
                    cls._declare(field, annotation, prefix)
        variadic = [field for field in cls.OPERANDS if field.endswith("...")]
        for place, field in enumerate(cls.OPERANDS):
            if field in variadic:
                setattr(cls, field[:-3], _variadic(place, len(variadic) == 1))
        cls.takes_more_operands = bool(variadic)
        fixed: Any = [(field, ir.Type) for field in cls.OPERANDS if field not in variadic]
        cls.Types = NamedTuple("Types", fixed)  # pyright: ignore
        cls.dialect.operations.append(cls)
        DECLARED[cls.OPERATION_NAME] = cls

    @classmethod
    def _declare(cls, field: str, annotation: Any, prefix: str) -> None:
        part, constraint = (annotation[0].part, annotation[1]) if type(annotation) is tuple else ("", annotation)
        if part == "operand":
            setattr(cls, field, _OperandField(len(cls.OPERANDS)))
            cls.OPERANDS[field] = constraint
        elif part == "result":
            place = len(cls.RESULTS)
            setattr(cls, field, property(lambda view: view.operation.results[place]))
            cls.RESULTS[field] = constraint
        elif part == "variadic":
            cls.OPERANDS[f"{field}..."] = constraint
        elif part == "optional":
            setattr(cls, field, _attribute(prefix + field, constraint, optional=True))
            cls.OPTIONAL[prefix + field] = constraint
        else:
            setattr(cls, field, _attribute(field, constraint, optional=False))
            cls.ATTRIBUTES[field] = constraint


@functools.lru_cache(maxsize=256)
def _fixed_type(kind: "type[OpView]") -> ir.Type:
    """Return the type that the class of an operation with one result declares for it."""
    (constraint,) = kind.RESULTS.values()
    return ir.Type.parse(f"i{constraint.__args__[0]}", context())


class Type(ir.DynamicType):
    """Base of the types of a dialect; annotations declare their parameters, which are attributes."""

    type_name: str
    _symbol: str

    def __init_subclass__(cls, name: str, dialect: "type[Dialect]") -> None:
        cls.type_name = f"{dialect.DIALECT_NAMESPACE}.{name}"
        cls._symbol = f"@{dialect.DIALECT_NAMESPACE}::@{name}"
        dialect.types.append(cls)


class Dialect:
    """Base of the dialects."""

    DIALECT_NAMESPACE: str
    operations: "list[type[OpView]]"
    types: "list[type[Type]]"

    class Operation(OpView):
        """Base of the operations of the dialect."""

    def __init_subclass__(cls, name: str) -> None:
        cls.DIALECT_NAMESPACE = name
        cls.operations = []
        cls.types = []
        setattr(cls, "Operation", type("Operation", (OpView,), {"dialect": cls, "__slots__": ()}))  # noqa: B010

    @classmethod
    def irdl(cls) -> str:
        """Return the definition of the dialect in IRDL."""
        parts = [_definition("type", kind.type_name, {"parameters": kind.__annotations__}) for kind in cls.types]
        for op in cls.operations:
            fields = {"operands": op.OPERANDS, "attributes": op.ATTRIBUTES, "results": op.RESULTS}
            parts.append(_definition("operation", op.OPERATION_NAME, fields))
        return f"irdl.dialect @{cls.DIALECT_NAMESPACE} {{\n{''.join(parts)}}}\n"

    @classmethod
    def load(cls) -> None:
        """Register the dialect with the current context, which must not know it yet."""
        load_irdl(cls.irdl())
        for op in cls.operations:
            for trait in op.TRAITS:
                trait.attach(op.OPERATION_NAME)
        for kind in cls.types:
            register_type(kind.type_name, kind)


def _definition(what: str, name: str, fields: "dict[str, dict[str, Any]]") -> str:
    """Return the definition of a type or an operation in IRDL."""
    lines: list[str] = []

    def value(constraint: Any) -> str:
        text = _constraint(constraint, value)
        lines.append(f"%{len(lines)} = irdl.{text}")
        return f"%{len(lines) - 1}"

    for part, constraints in fields.items():
        values = {field: value(constraint) for field, constraint in constraints.items()}
        if part == "attributes":
            texts = [f'"{field}" = {x}' for field, x in values.items()]
            bracketed = f" {{{', '.join(texts)}}}"
        else:
            texts = [
                f"{field[:-3]}: variadic {x}" if field.endswith("...") else f"{field}: {x}"
                for field, x in values.items()
            ]
            bracketed = f"({', '.join(texts)})"
        if texts or part == "parameters":
            lines.append(f"irdl.{part}{bracketed}")
    body = "\n".join(lines)
    return f"irdl.{what} @{name.partition('.')[2]} {{\n{body}\n}}\n"


def _constraint(constraint: Any, value: Any) -> str:
    """Return the IRDL constraint of a field; `value` defines one that it refers to and returns its name."""
    if constraint is Any:
        return "any"
    if isinstance(constraint, types.UnionType):
        return f"any_of({', '.join(map(value, constraint.__args__))})"
    if getattr(constraint, "__origin__", None) is ir.IntegerType:
        return f"is i{constraint.__args__[0]}"
    kind: Any = constraint.base if isinstance(constraint, Choice) else constraint
    if issubclass(kind, Type):
        return f"base {kind._symbol}"
    return f'base "!{kind.type_name}"' if issubclass(kind, ir.Type) else f'base "#{kind.attr_name}"'
