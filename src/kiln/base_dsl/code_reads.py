"""Reads of code besides its variables: globals, attributes, imported modules, and names that it spells as strings
(`getattr(module, "K")`, `globals()["K"]`, `os.environ["K"]`)."""

from __future__ import annotations

import ast
import dis
import functools
import operator
import types
from typing import NamedTuple

from .code_cache import by_code
from .diagnostics import DSLRuntimeError

_BY_NAME = {"getattr", "hasattr"}
"""Functions whose second argument is the name of an attribute."""
_TABLES = {"globals", "vars", "locals"}
"""Functions that return a dictionary of names."""
_ABOUT_CLASSES = {
    "isinstance",
    "issubclass",
    "__instancecheck__",
    "__subclasscheck__",
    "singledispatch",
    "singledispatchmethod",
}
ENVIRONMENT = {"environ", "environb", "getenv"}
_MODULES = {"modules", "import_module", "__import__"}
"""Objects that give modules by name: `sys.modules`, `importlib.import_module`."""
_ANYTHING = {
    "eval",
    "exec",
    "dir",
    "__import__",
    "import_module",
    "attrgetter",
    "methodcaller",
    "getmembers",
    "getattr_static",
    "__getattribute__",
    "reload",
    "getclosurevars",
}
"""Functions that read names that cannot be known beforehand."""
_UNUSUAL = _BY_NAME | _TABLES | ENVIRONMENT | _ANYTHING | _MODULES | {"__dict__"}


class CodeReads(NamedTuple):
    """The names that a code object, and those in it, may read."""

    names: frozenset[str]
    """Globals."""
    attributes: frozenset[str]
    changes: frozenset[str]
    """Attributes that are set or deleted, besides those that `__init__` sets."""
    imports: frozenset[tuple[str, int]]
    """Modules, with the level of a relative import."""
    texts: frozenset[str]
    """Names that are spelled as strings, or whose absence would be noticed: they need not exist."""
    modules: frozenset[str]
    """Modules whose names are spelled as strings."""
    of_modules: bool
    """Whether modules are looked up by name."""
    of_globals: bool
    """Whether strings may be names of globals."""
    of_environment: bool
    """Whether strings may be names of environment variables."""
    of_classes: bool
    """Whether objects are asked for their classes, so that classes registered with abstract ones count."""
    anything: bool
    """Whether names are computed at run time."""


@by_code
def code_reads(code: types.CodeType) -> CodeReads:
    """Return what a code object, and those in it, may read."""
    names = set[str]()
    attributes = set[str]()
    changes = set[str]()
    texts = set[str]()
    imports = set[tuple[str, int]]()
    catches = matches = False
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        operation = instruction.opname
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            names.add(instruction.argval)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(instruction.argval)
        elif operation in ("STORE_ATTR", "DELETE_ATTR"):
            changes.add(instruction.argval)
        elif operation == "IMPORT_NAME":
            level = instructions[at - 2].argval
            imports.add((instruction.argval, level if type(level) is int else 0))
        elif operation in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"):
            catches = True
        elif operation in ("MATCH_CLASS", "MATCH_MAPPING", "MATCH_SEQUENCE"):
            matches = True
            attributes.add("__match_args__")
            attributes |= {text for c in code.co_consts if type(c) is tuple for text in c if type(text) is str}
    unusual = (names | attributes) & _UNUSUAL
    anything = bool(unusual & _ANYTHING)
    if unusual:
        anything = anything or not _names_are_listed(code)
        texts |= {c for c in code.co_consts if type(c) is str and c.isidentifier()}
    modules = {c for c in code.co_consts if type(c) is str and unusual & _MODULES and _is_module_name(c)}
    if catches:
        texts |= attributes
    own = CodeReads(
        frozenset(names),
        frozenset(attributes),
        frozenset(changes if code.co_name != "__init__" else ()),
        frozenset(imports),
        frozenset(texts),
        frozenset(modules),
        of_modules=bool(unusual & _MODULES),
        of_globals=bool(unusual & _TABLES),
        of_environment=bool(unusual & ENVIRONMENT),
        of_classes=matches or bool((names | attributes) & _ABOUT_CLASSES),
        anything=anything,
    )
    inner = [code_reads(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return CodeReads(*(functools.reduce(operator.or_, field) for field in zip(own, *inner, strict=True)))


def _is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _names_are_listed(code: types.CodeType) -> bool:
    """Return whether the source spells every name by which it looks something up as a string."""
    from .frontend import source

    if code.co_name.startswith("<") and code.co_name != "<lambda>":  # a comprehension: whoever holds it is looked at
        return True
    try:
        tree = source.find(code)
    except DSLRuntimeError:
        return False
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in _BY_NAME or name == "getenv":
            call = parents.get(node)
            place = 1 if name in _BY_NAME else 0
            if not (isinstance(call, ast.Call) and call.func is node and _is_text(call.args[place : place + 1])):
                return False
        elif name in _TABLES:
            call = parents.get(node)
            if not (isinstance(call, ast.Call) and call.func is node and _is_looked_up(call, parents)):
                return False
        elif name in ("__dict__", "environ", "environb") and not _is_looked_up(node, parents):
            return False
    return True


def _is_looked_up(table: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a dictionary is only asked for one name: `table["K"]`, `table.get("K")`, `"K" in table`."""
    parent = parents.get(table)
    if isinstance(parent, ast.Subscript) and parent.value is table:
        return _is_text([parent.slice])
    if isinstance(parent, ast.Attribute) and parent.attr == "get":
        call = parents.get(parent)
        return isinstance(call, ast.Call) and call.func is parent and _is_text(call.args[:1])
    return isinstance(parent, ast.Compare) and _is_text([parent.left])


def _is_text(nodes: list[ast.expr]) -> bool:
    return len(nodes) == 1 and isinstance(nodes[0], ast.Constant) and isinstance(nodes[0].value, (str, bytes))
