"""The pre-stage: rewrites the syntax tree of a function so that its control flow goes through hooks.

Each construct has a file of its own with two halves: how it is rewritten, and the hook that runs in its place while
tracing. This module holds what they share. The root of a rewritten construct has a location in the user's file; nodes
below it that have none get it at the end.
"""

from __future__ import annotations

import ast
import dataclasses
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..diagnostics import DSLSyntaxError, Span, generated_name, generated_names, node_span
from . import (
    assert_,
    boolean,
    builtin_calls,
    comparison,
    conditional,
    for_,
    if_,
    match_,
    nodes,
    raise_,
    rewrite_cache,
    source,
    trace_only,
    while_,
)
from .construct import Construct, FunctionFacts
from .hooks import Hooks
from .jumps import RETURN_FLAG, Guard, JumpLowering, Loop, Misplaced
from .liveness import Flow, Liveness, declared_outside, names_of, parameter_names
from .loop_else import bound_by_break_or_else
from .nodes import mark_test

HOOKS = "__kiln__"
SCOPE = "__kiln_scope"
FUNCTION = "__kiln_function"


@dataclasses.dataclass
class _Rewritten:
    code: types.CodeType
    constructs: list[Construct]
    typed: bool


_cache: weakref.WeakKeyDictionary[types.CodeType, dict[str, _Rewritten]] = weakref.WeakKeyDictionary()
"""By code, as long as that lives, and the file it is in: code that stands in the same lines of two files is equal."""
_already: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def rewrite(function: types.FunctionType, result: Callable[[Any], Any] | None = None) -> types.FunctionType:
    """Return the function with its control flow behind hooks. Its closure, defaults, globals and name stay.

    Decorators, defaults and annotations are not evaluated again. Rewriting is done once for each code object, so either
    always with a `result`, which every returned value goes through, or always without one.
    """
    if function.__code__ in _already:
        return function
    code = function.__code__
    by_file = _cache.setdefault(code, {})
    rewritten = by_file.get(code.co_filename)
    if rewritten is None:
        rewritten = by_file[code.co_filename] = _rewritten(function, result is not None)
    cells: dict[str, types.CellType] = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[HOOKS] = types.CellType(Hooks(rewritten.constructs, result))
    closure = tuple(cells[name] for name in rewritten.code.co_freevars)
    new_function = types.FunctionType(
        rewritten.code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    new_function.__kwdefaults__ = function.__kwdefaults__
    new_function.__qualname__ = function.__qualname__
    new_function.__module__ = function.__module__
    new_function.__dict__.update(function.__dict__)
    new_function.__doc__ = function.__doc__
    return new_function


def rewritten_source(function: types.FunctionType) -> str:
    """Return the rewritten function as Python text, for people to read."""
    rewrite(function)
    rewritten = _cache.get(function.__code__, {}).get(function.__code__.co_filename)
    return _rewrite_code(function, rewritten.typed)[2]() if rewritten else ""


def _rewritten(function: types.FunctionType, typed: bool) -> _Rewritten:
    """Return the function, rewritten here or by an earlier process; of typed functions the object code is cached."""

    def make() -> rewrite_cache.Made:
        return _rewrite_code(function, typed)[:2]

    code, constructs = make() if typed else rewrite_cache.kept(function.__code__, make)
    _mark_rewritten(code, function.__code__.co_name)
    return _Rewritten(code, constructs, typed)


def _rewrite_code(
    function: types.FunctionType, typed: bool
) -> tuple[types.CodeType, list[Construct], Callable[[], str]]:
    """Return the code, its constructs, and a function that gives it as Python text."""
    code = function.__code__
    node = source.find(code, function.__globals__)
    rewriter = Rewriter(code.co_filename, code.co_name, set(code.co_freevars), typed)
    if isinstance(node, ast.Lambda):
        inner: ast.expr | ast.stmt = rewriter.lambda_(node, top=True)
    else:
        inner = rewriter.function(node, top=True)
    # A function around it provides the free variables; `__class__` may be one of them.
    free = sorted({HOOKS, *code.co_freevars})
    parameters = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    if isinstance(inner, ast.expr):
        body: list[ast.stmt] = [ast.Return(inner)]
    else:
        assert isinstance(inner, ast.FunctionDef)
        inner.name = FUNCTION  # under its own name it would hide the global that a recursive call means
        body = [inner]
    factory = _function_def("__kiln_factory", parameters, body)
    module = nodes.fix_locations(ast.Module([factory], []))
    _mangle(module, code, getattr(code, "co_qualname", function.__qualname__))
    compiled = compile(module, code.co_filename, "exec", dont_inherit=True)
    factory_code = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    result = next(c for c in factory_code.co_consts if isinstance(c, types.CodeType))
    result = result.replace(co_name=code.co_name)
    if hasattr(code, "co_qualname"):
        result = _requalified(result, _qualname(result), _qualname(code))

    result = _renamed(result, code.co_name)

    def text() -> str:
        return ast.unparse(nodes.fix_locations(ast.Module([factory], []))).replace(FUNCTION, code.co_name)

    return result, rewriter.constructs, text


def _renamed(code: types.CodeType, name: str) -> types.CodeType:
    """Return the code of a function `name`, whose generated parts get this name, for tracebacks.

    Their own is their last constant (`diagnostics.generated_name`). Functions without a name keep them.
    """
    own = code.co_name
    if not own.startswith("__kiln"):
        name = own
    constants = tuple(_renamed(c, name) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    if own == name or name.startswith("<"):
        return code.replace(co_consts=constants)
    return code.replace(co_consts=(*constants, own), co_name=name)


def _requalified(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """Return the code, inner functions included, with the qualified names of the user's function, for tracebacks."""
    constants = tuple(_requalified(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    replace: Any = code.replace
    return replace(co_consts=constants, co_qualname=new + _qualname(code).removeprefix(old))


def _qualname(code: Any) -> str:
    return code.co_qualname  # Python 3.11


def _mark_rewritten(code: types.CodeType, name: str) -> None:
    _already.add(code)
    if generated_name(code):
        generated_names[code] = name
    elif not code.co_name.startswith("<"):
        name = code.co_name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _mark_rewritten(constant, name)


def _names(code: types.CodeType) -> Iterator[str]:
    """Return the names that a function and those in it use."""
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _mangle(module: ast.Module, code: types.CodeType, qualname: str) -> None:
    """Mangle private names (`self.__x`), as the compiler did in the class, for code outside the class."""
    owner = ""
    parts = [p for p in qualname.split(".") if p != "<locals>"]
    if len(parts) > 1:
        owner = parts[-2].lstrip("_")
    if not owner or not any(name.startswith(f"_{owner}__") for name in _names(code)):
        return

    def mangled(name: str) -> str:
        return (
            f"_{owner}{name}"
            if name.startswith("__") and not name.endswith("__") and not name.startswith("__kiln")
            else name
        )

    for node in nodes.walk(module):
        if isinstance(node, ast.Attribute):
            node.attr = mangled(node.attr)
        elif isinstance(node, ast.Name):
            node.id = mangled(node.id)
        elif isinstance(node, ast.arg):
            node.arg = mangled(node.arg)
        elif isinstance(node, (ast.Nonlocal, ast.Global)):
            node.names = [mangled(n) for n in node.names]


def _function_def(name: str, parameters: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    node = ast.FunctionDef(name, parameters, body, [], None, None)
    if "type_params" in ast.FunctionDef._fields:
        node.type_params = []  # type: ignore[attr-defined]
    return node


def no_parameters() -> ast.arguments:
    """Return an empty parameter list."""
    return ast.arguments([], [], None, [], [], None, [])


class Rewriter:
    """Rewrites one top-level function and the functions defined in it."""

    def __init__(self, filename: str, function: str, free: set[str], typed: bool = False) -> None:
        self.filename = filename
        self._free = free
        self.typed = typed
        """Whether its result has a declared type, so that all its values are the program's."""
        self.constructs: list[Construct] = []
        self._counter = 0
        self._scopes: list[_ScopeState] = []
        self.function_name = function

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, top: bool = False) -> ast.stmt:
        """Return a function definition. The top one loses decorators, defaults and annotations: they ran already."""
        inside = [inner for stmt in node.body for inner in nodes.walk(stmt)]
        kinds = {type(inner) for inner in inside}
        suspends: ast.AST | None = None
        if isinstance(node, ast.AsyncFunctionDef):
            suspends = node
        elif not kinds.isdisjoint(_SUSPENDING):
            suspends = _suspension(node)
        if suspends is not None:
            if not top:
                return node  # an inner generator is ordinary Python, run while tracing
            names: dict[type, str] = {ast.Yield: "`yield`", ast.YieldFrom: "`yield from`", ast.Await: "`await`"}
            what = names.get(type(suspends), "`async def`")
            self.refuse(
                suspends,
                f"{what} in a function that is compiled: a generator or coroutine cannot be traced",
                "return the values instead, as a tuple",
            )
        assert isinstance(node, ast.FunctionDef)
        state = _ScopeState(node.name, self)
        self._scopes.append(state)
        state.first_parameter = next((a.arg for a in (*node.args.posonlyargs, *node.args.args)), None)
        try:
            self._note_assignments(node.args, inside, state.facts)
            body = self._body(node, state, kinds)
        finally:
            self._scopes.pop()
        arguments = _bare_arguments(node.args) if top else node.args
        definition = _function_def(node.name, arguments, body)
        if not top:
            definition.decorator_list = [self.expression(d) for d in node.decorator_list]
            definition.returns = node.returns
        return ast.copy_location(definition, node)

    def _body(self, node: ast.FunctionDef, state: _ScopeState, kinds: set[type[ast.AST]]) -> list[ast.stmt]:
        """Return the statements of a function; `kinds` are the kinds of its nodes: others need not be looked for."""
        statements = node.body
        docstring: list[ast.stmt] = []
        if statements and isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
            if isinstance(statements[0].value.value, str):
                docstring = statements[:1]
                statements = statements[1:]
        if not statements:
            return docstring or [ast.copy_location(ast.Pass(), node)]
        if ast.AnnAssign in kinds:
            state.facts.constexpr_names = frozenset(_constexpr_names(statements))
            statements = _without_annotations(statements)
        if ast.Match in kinds:
            statements = [d for s in statements for d in match_.desugar(s)]
        if not kinds.isdisjoint((ast.For, ast.While)):
            state.facts.break_bound = bound_by_break_or_else(statements)
        lowering = JumpLowering(self.typed and len(self._scopes) == 1)
        try:
            statements = lowering.function(statements)
        except Misplaced as jump:
            self.refuse(jump.node, jump.message, jump.hint)
        has_scopes = not kinds.isdisjoint(_SCOPES)
        state.liveness = Liveness(statements, has_scopes)
        state.facts.flag_targets = state.liveness.flag_targets
        loads, stores = state.liveness.names(*statements)
        outside = declared_outside(node.body) if has_scopes else set[str]()
        parameters = parameter_names(node.args)
        local = (parameters | stores) - outside
        state.locals = local
        state.global_names = {n for s in statements if isinstance(s, ast.Global) for n in s.names}
        body = self.block(statements)
        # Every name a region may touch, through one closure: its cells are the function's variables.
        names = sorted(local | ((loads | stores | outside) & (self._enclosing_names() - state.global_names)))
        header: list[ast.stmt] = [n for n in statements if isinstance(n, (ast.Nonlocal, ast.Global))]
        body = [s for s in body if not isinstance(s, (ast.Nonlocal, ast.Global))]
        header += [_declare(name) for name in sorted(local - parameters)]
        tuple_of_names = ast.Tuple([ast.Name(n, ast.Load()) for n in names], ast.Load())
        getter = ast.Lambda(no_parameters(), tuple_of_names)
        make_scope = ast.Assign([ast.Name(SCOPE, ast.Store())], self.hook("scope", [getter]))
        header.append(make_scope)
        for stmt in header:
            ast.copy_location(stmt, node)
        return [*docstring, *header, *body]

    def _note_assignments(self, arguments: ast.arguments, inside: list[ast.AST], facts: FunctionFacts) -> None:
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            facts.assigned.setdefault(argument.arg, []).append(self.span(argument))
        for inner in inside:
            kind = inner.__class__
            if kind is ast.Return:
                facts.returns.append(self.span(inner))
            elif kind in _ASSIGNING:
                for name in _assigned_names(inner):
                    facts.assigned.setdefault(name, []).append(self.span(inner))

    def is_global(self, name: str) -> bool:
        """Return whether a name is one of the function's module, or a builtin."""
        if self.typed or not self._scopes:
            return False
        return name not in (self._scopes[-1].locals or ()) and name not in self._enclosing_names()

    def _enclosing_names(self) -> set[str]:
        names: set[str] = set()
        for outer in self._scopes[:-1]:
            names |= outer.locals or set()
        return names | self._free

    def lambda_(self, node: ast.Lambda, top: bool = False) -> ast.expr:
        """Return a lambda: its body is one expression."""
        body = _Expressions(self, inner_scopes=1).visit(node.body)
        return ast.copy_location(ast.Lambda(_bare_arguments(node.args) if top else node.args, body), node)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return a statement list with its constructs rewritten."""
        out: list[ast.stmt] = []
        for stmt in statements:
            self._scopes[-1].pending.append([])
            rewritten = self.statement(stmt)
            out += self._scopes[-1].pending.pop()
            out += rewritten
        return out

    def statement(self, stmt: ast.stmt) -> list[ast.stmt]:
        if isinstance(stmt, ast.If):
            return if_.rewrite(self, stmt)
        if isinstance(stmt, Guard):
            return if_.rewrite_guard(self, stmt)
        if isinstance(stmt, Loop):
            return self._loop(stmt)
        if isinstance(stmt, ast.Assert):
            return assert_.rewrite(self, stmt)
        if isinstance(stmt, ast.Raise):
            return raise_.rewrite(self, stmt)
        if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return [self.function(stmt)]
        if isinstance(stmt, ast.ClassDef):
            return [stmt]
        if isinstance(stmt, (ast.AsyncFor, ast.AsyncWith)):
            self.refuse(stmt, "asynchronous statements cannot be traced", "use the plain statement")
        if isinstance(stmt, ast.Global):
            state = self._scopes[-1]
            if state.depth:
                self.refuse(stmt, "`global` inside a branch or loop is not supported", "return the value instead")
            return [stmt]
        checks: list[ast.stmt] = []
        if isinstance(stmt, (ast.Assign, ast.AugAssign, ast.Delete)):
            checks = trace_only.rewrite_stores(self, stmt, self._scopes[-1].global_names)
        if isinstance(stmt, ast.Match):
            stmt.subject = ast.copy_location(self.hook("static_subject", [stmt.subject]), stmt.subject)
        for field in nodes.FIELDS[type(stmt)]:
            value = getattr(stmt, field, None)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(stmt, field, self.block(value))
            elif isinstance(value, list):
                setattr(stmt, field, [self._part(v) for v in value])
            elif isinstance(value, ast.AST):
                setattr(stmt, field, self._part(value))
        return [*checks, stmt]

    def _loop(self, stmt: Loop) -> list[ast.stmt]:
        flags = self._scopes[-1].loop_flags
        mine = [f for f in (*stmt.exits, *stmt.resets) if f not in flags]
        flags += mine
        try:
            return (for_ if isinstance(stmt.node, ast.For) else while_).rewrite(self, stmt)
        finally:
            del flags[len(flags) - len(mine) :]

    def _part(self, node: object) -> Any:
        if isinstance(node, ast.expr):
            return self.expression(node)
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            node.body = self.block(node.body)
            if isinstance(node, ast.match_case) and node.guard is not None:
                node.guard = self.expression(node.guard)
        elif isinstance(node, ast.withitem):
            node.context_expr = self.expression(node.context_expr)
        return node

    def expression(self, node: ast.expr) -> ast.expr:
        """Return an expression with its lazy parts behind hooks."""
        return _Expressions(self).visit(node)

    def thunk(self, node: ast.expr, outer: _Expressions) -> ast.expr:
        """Return a callable that evaluates `node` when asked to."""
        walrus = {n.target.id for n in nodes.walk_scope(node) if isinstance(n, ast.NamedExpr)}
        body = outer.visit(node)
        if not walrus:
            return ast.copy_location(ast.Lambda(no_parameters(), body), node)
        if outer.inner_scopes:
            self.refuse(node, "`:=` in a lazily evaluated part of a comprehension or lambda", "assign on a line before")
        name = self.fresh("arm")
        function = self.inner_function(name, [ast.copy_location(ast.Return(body), node)], walrus, node)
        self._scopes[-1].pending[-1].append(function)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def hook(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        """Return a call of a hook."""
        return ast.Call(ast.Attribute(ast.Name(HOOKS, ast.Load()), name, ast.Load()), arguments, [])

    def scope(self) -> ast.expr:
        """Return the variables of the function, as hooks take them."""
        return ast.Name(SCOPE, ast.Load())

    def fresh(self, what: str) -> str:
        """Return a name no program uses."""
        self._counter += 1
        return f"__kiln_{what}_{self._counter}"

    def inner_function(
        self,
        name: str,
        body: list[ast.stmt],
        writes: set[str] | frozenset[str],
        like: ast.AST,
        parameters: list[str] | None = None,
    ) -> ast.FunctionDef:
        """Return a function that works on the variables of the function around it."""
        global_names = self._scopes[-1].global_names
        rebound = sorted(writes - global_names)
        rebound_globals = sorted(writes & global_names)
        first: list[ast.stmt] = [ast.Nonlocal(rebound)] if rebound else []
        first += [ast.Global(rebound_globals)] if rebound_globals else []
        arguments = no_parameters()
        arguments.args = [ast.arg(p) for p in parameters or []]
        if not body:
            first.append(ast.Pass())
        inner = _function_def(name, arguments, [*first, *body])
        for new in (inner, *first, *arguments.args):  # what is in the body has its place: functions are nested deeply
            ast.copy_location(new, like)
        return inner

    def region(self, name: str, statements: list[ast.stmt], like: ast.AST, item: str | None = None) -> ast.FunctionDef:
        """Return a function for the body of a region; `dynamic` (its parameter) says whether it is one in the IR."""
        state = self._scopes[-1]
        flag = self.fresh("dynamic")
        state.regions.append(flag)
        state.depth += 1
        assert state.liveness is not None
        writes = state.liveness.names(*statements)[1]  # rewriting changes the statements in place
        body = self.block(statements)
        state.depth -= 1
        state.regions.pop()
        parameters = [flag] if item is None else [flag, item]
        return self.inner_function(name, body, writes, like, parameters)

    def innermost_region(self) -> str | None:
        """Return the variable that says whether the innermost region is one in the IR."""
        regions = self._scopes[-1].regions
        return regions[-1] if regions else None

    @property
    def first_parameter(self) -> str | None:
        """Return the first parameter of the function being rewritten (for `super()`)."""
        return self._scopes[-1].first_parameter if self._scopes else None

    def construct(
        self, kind: str, node: ast.AST, header: ast.AST, flow_of: ast.AST, parts: list[ast.AST], **more: Any
    ) -> ast.expr:
        """Record a construct, and return the index that its hook looks it up by."""
        state = self._scopes[-1]
        assert state.liveness is not None
        flow = state.liveness.flow.get(flow_of, Flow())
        assigned: dict[str, list[Span]] = {}
        calls: set[str] = set()
        attributes: set[str] = set()
        items: set[tuple[str, Any]] = set()
        for part in parts:
            for inner in nodes.walk(part):
                construct_kind = inner.__class__
                if construct_kind in _ASSIGNING:
                    for name in _assigned_names(inner):
                        assigned.setdefault(name, []).append(self.span(inner))
                elif construct_kind is ast.Call:
                    callee = inner.func
                    if isinstance(callee, (ast.Name, ast.Attribute)):
                        calls.add(callee.id if isinstance(callee, ast.Name) else callee.attr)
                elif construct_kind is ast.Subscript and isinstance(inner.ctx, ast.Store):
                    items.add(
                        (
                            _container_name(inner.value),
                            inner.slice.value if isinstance(inner.slice, ast.Constant) else None,
                        )
                    )
                elif construct_kind is ast.Attribute:
                    (attributes if isinstance(inner.ctx, ast.Store) else calls).add(inner.attr)
        self.constructs.append(
            Construct(
                kind,
                self.span(header),
                flow,
                state.facts,
                flags=(RETURN_FLAG, *state.loop_flags),
                assigned=assigned,
                global_writes=tuple(sorted(flow.writes & state.global_names)),
                calls=frozenset(calls),
                attribute_stores=frozenset(attributes),
                item_stores=frozenset(items),
                **more,
            )
        )
        return ast.Constant(len(self.constructs) - 1)

    def span(self, node: ast.AST) -> Span:
        """Return where a node stands in the user's file."""
        return node_span(node, self.filename, self._scopes[-1].facts.name if self._scopes else self.function_name)

    def refuse(self, node: ast.AST, message: str, hint: str) -> None:
        """Reject a construct before anything runs."""
        raise DSLSyntaxError(message, hint=hint, span=self.span(node))


_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Nonlocal, ast.Global)
"""Nodes without which a function has no scopes but its own and those of comprehensions."""


class _ScopeState:
    """The state of rewriting the body of one function."""

    def __init__(self, name: str, rewriter: Rewriter) -> None:
        self.facts = FunctionFacts(name, rewriter.filename)
        self.liveness: Liveness | None = None
        self.pending: list[list[ast.stmt]] = []
        self.regions: list[str] = []
        self.depth = 0
        self.loop_flags: list[str] = []
        self.first_parameter: str | None = None
        self.locals: set[str] | None = None
        self.global_names: set[str] = set()


class _Expressions(nodes.Transformer):
    """Rewrites the parts of an expression that Python evaluates lazily, and builtins that need concrete values."""

    def __init__(self, rewriter: Rewriter, inner_scopes: int = 0) -> None:
        self.rewriter = rewriter
        self.inner_scopes = inner_scopes

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return boolean.rewrite(self.rewriter, node, self)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            mark_test(node.operand)
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return boolean.rewrite_not(self.rewriter, node)
        return boolean.rewrite_invert(self.rewriter, node) if isinstance(node.op, ast.Invert) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return conditional.rewrite(self.rewriter, node, self)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return comparison.rewrite(self.rewriter, node, self)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in ("bool", "Boolean"):
            for argument in node.args:
                mark_test(argument)
        if not self.inner_scopes:
            trace_only.rewrite_call(self.rewriter, node)
        self.generic_visit(node)
        return builtin_calls.rewrite(self.rewriter, node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """Rewrite an f-string: a hook joins its parts, which may be texts of dynamic values."""
        parts = [self.visit(value) for value in node.values]
        if len(parts) < 2 or not any(isinstance(part, ast.FormattedValue) for part in parts):
            node.values = parts
            return node
        each: list[ast.expr] = [
            part if isinstance(part, ast.Constant) else ast.copy_location(ast.JoinedStr([part]), part) for part in parts
        ]
        return ast.copy_location(self.rewriter.hook("joined", each), node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        node.value = self.visit(node.value)  # a format stays what it is
        return node

    def _inner(self, node: object) -> Any:
        self.inner_scopes += 1
        self.generic_visit(node)
        self.inner_scopes -= 1
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _inner

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        for test in node.ifs:
            mark_test(test)
        self.generic_visit(node)
        node.ifs = [ast.copy_location(self.rewriter.hook("static_bool", [test]), test) for test in node.ifs]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return self._inner(node)


_ASSIGNING = frozenset((ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For))


def _assigned_names(node: Any) -> set[str]:
    """Return the names that a node of these kinds assigns itself."""
    return names_of(*(node.targets if isinstance(node, ast.Assign) else [node.target]))[1]


def _container_name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _declare(name: str) -> ast.stmt:
    """Make a name a local variable without giving it a value."""
    return ast.AnnAssign(ast.Name(name, ast.Store()), ast.Constant(None), None, 1)


def _bare_arguments(arguments: ast.arguments) -> ast.arguments:
    def bare(a: ast.arg | None) -> ast.arg | None:
        return None if a is None else ast.copy_location(ast.arg(a.arg), a)

    return ast.arguments(
        [ast.arg(a.arg) for a in arguments.posonlyargs],
        [ast.arg(a.arg) for a in arguments.args],
        bare(arguments.vararg),
        [ast.arg(a.arg) for a in arguments.kwonlyargs],
        [None for _ in arguments.kwonlyargs],
        bare(arguments.kwarg),
        [],
    )


def _suspension(node: ast.FunctionDef) -> ast.AST | None:
    """Return the first `yield` or `await` of a function's own body."""
    todo: list[Any] = [*node.body]
    suspensions: list[Any] = []
    for each in todo:  # the list grows in the loop
        if isinstance(each, (ast.Yield, ast.YieldFrom, ast.Await)):
            suspensions.append(each)
        elif not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)):
            nodes.add_children(each, todo)
    return min(suspensions, key=lambda each: (each.lineno, each.col_offset), default=None)


def _names_constexpr(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return "Constexpr" in annotation.value
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return (isinstance(annotation, ast.Attribute) and annotation.attr == "Constexpr") or (
        isinstance(annotation, ast.Name) and annotation.id == "Constexpr"
    )


def _constexpr_names(statements: list[ast.stmt]) -> set[str]:
    return {
        node.target.id
        for stmt in statements
        for node in nodes.walk(stmt)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _names_constexpr(node.annotation)
    }


class _DropAnnotations(nodes.Transformer):
    """`x: T = v` becomes `x = v`: an annotated name cannot be shared with inner functions."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node  # handled when it is rewritten itself

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]


def _without_annotations(statements: list[ast.stmt]) -> list[ast.stmt]:
    return [_DropAnnotations().visit(s) for s in statements]
