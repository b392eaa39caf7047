"""The mutation corpus: every synchronizing statement of some kernels, deleted or weakened, one at a time.

    python tests/helpers/mutation.py --save      # all of it into docs/data/mutants.md: some minutes
    python tests/helpers/mutation.py -v ring     # of the programs with "ring" in their name, with what was found; --save: the others' lines stay
    python tests/helpers/mutation.py --new --save      # only mutants that the record lacks, where it is of other kernels

The programs are the files in `mutants`. One that names a `LIBRARY` mutates those modules of Kiln's kernels, from their source as
it is, and runs the library with them; with `RELEASES`, also what is called `release`. One that names an `EXAMPLE` mutates that program of `examples`, with the replacements of
`SMALLER`, and runs it. `CHANGED` lists further mutants: what changes, a text of the program, and what takes its place. In one that says `GUARDS = True` comparisons that guard accesses, predicates of copies and
initializations of registers are taken away as well. A mutant is *detected* if the sanitizer finds something or a deadlock is reported, under some schedule. One that
is not is *equivalent* if `EQUIVALENT` names the synchronization that still implies what was taken away; else it is *missed*.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.abc
import importlib.util
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from equivalences import EQUIVALENCES

import kiln
from kiln.base_dsl import settings
from kiln.sanitize import SanitizerError
from kiln.targets.cpu.runtime import parts

FOLDER = Path(__file__).parents[1] / "targets" / "cpu" / "sanitizer" / "mutants"
EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = Path(__file__).parents[2] / "docs" / "data" / "mutants.md"
WRITTEN = "<!-- Written by `python tests/helpers/mutation.py --save`; not edited by hand. -->"
SEEDS = (0, 1, 2)
"""Schedules: in order, and two permuted ones."""
STEPS = 10_000_000
"""Steps that a launch may take: a mutant that spins for ever ends, on a slow machine, too."""

SYNCHRONIZING = {
    "sync_threads", "sync_warp", "barrier", "barrier_arrive", "mbarrier_init", "mbarrier_init_fence", "mbarrier_wait",
    "mbarrier_arrive", "mbarrier_arrive_and_expect_tx", "mbarrier_expect_tx", "cp_async_commit_group", "cp_async_wait_group",
    "cp_async_mbarrier_arrive_noinc", "cluster_arrive", "cluster_wait", "fence_acq_rel_gpu", "fence_proxy", "store", "load",
    "cp_async_bulk_commit_group", "cp_async_bulk_wait_group", "fence_view_async_shared", "CooperativeGroup",
    "producer_acquire", "producer_commit", "producer_tail", "consumer_wait", "consumer_release", "advance", "commit", "release",
    "tail", "acquire_and_advance", "wait_and_advance", "pipeline_init_arrive", "pipeline_init_wait", "wait", "arrive",
    "arrive_and_wait", "sync", "NamedBarrier", "cluster_arrive_relaxed", "griddepcontrol_wait",
    "fence", "commit_group", "wait_group", "fence_tma_desc_release", "fence_tma_desc_acquire", "cp_fence_tma_desc_release",
    "fence_tensormap_initialization", "fence_tensormap_update", "fence_view_async_tmem_load", "fence_view_async_tmem_store",
    "wait_for_alloc", "free", "dealloc_tmem", "alloc_tmem",
    "tcgen05_wait", "tcgen05_fence", "tcgen05_commit",
}  # fmt: skip
ARRIVALS = {
    "barrier_arrive", "mbarrier_arrive", "cp_async_mbarrier_arrive_noinc", "cluster_arrive", "producer_commit", "commit",
    "consumer_release", "release", "arrive", "commit_group", "cp_async_bulk_commit_group", "tcgen05_commit",
}  # fmt: skip
WAITS = {
    "sync_threads", "sync_warp", "barrier", "mbarrier_wait", "cp_async_wait_group", "cluster_wait", "producer_acquire",
    "consumer_wait", "wait", "arrive_and_wait", "sync", "fence", "wait_group", "cp_async_bulk_wait_group", "wait_for_alloc",
}  # fmt: skip
OTHERS = {"allocate_tensor", "copy", "make_pipeline_state", "set", "allocate"}
"""What is not deleted, but may be changed."""

_BLOCK = "cute.arch.block_idx_in_cluster()"
_BYTES = ("half the bytes", "{} // 2"), ("more bytes", "{} + 16")
_GROUPS = (("leaves one more group", "{} + 1"),)
ARGUMENTS: dict[tuple[str, int | str], tuple[tuple[str, str], ...]] = {
    ("", "tx_count"): _BYTES,
    ("", "mcast_mask"): (
        ("without this block", f"({{}}) & ~(1 << {_BLOCK})"),
        ("to one block more", f"({{}}) | (1 << (({_BLOCK} + 1) % cute.arch.cluster_size()))"),
    ),
    ("CooperativeGroup", 1): (("one more arrival", "{} + 1"), ("one arrival fewer", "{} - 1")),
    ("NamedBarrier", "num_threads"): (("for a warp fewer", "{} - 32"),),
    ("NamedBarrier", "barrier_id"): (("the same for all", "1"),),
    ("allocate", 0): (("half the columns", "{} // 2"),),
    ("alloc_tmem", 0): (("twice the columns", "{} * 2"),),
    ("allocate_tensor", 2): (("16 bytes further", "16 * bool({receiver}.allocate(16, 16))"),),
    ("allocate_tensor", 3): (("with another swizzle", "cute.make_swizzle(1, 4, 3)"),),
    ("cp_async_bulk_wait_group", 0): (*_GROUPS, ("only until all is read", "{}, read=True")),
    ("cp_async_wait_group", 0): _GROUPS,
    ("fence_proxy", 0): (("of global memory", "'async.global'"),),
    ("mbarrier_arrive_and_expect_tx", 1): _BYTES,
    ("mbarrier_arrive_and_expect_tx", "bytes"): _BYTES[:1],
    ("mbarrier_expect_tx", 1): _BYTES,
    ("mbarrier_expect_tx", "bytes"): _BYTES[:1],
    ("mbarrier_wait", 1): (("for the other phase", "({}) ^ 1"),),
    ("set", 1): (("never", "True"),),
    ("wait_group", 0): _GROUPS,
}
"""(What is called, or any; which argument) -> changes, and for each what takes the argument's place."""

EQUIVALENT: dict[str, dict[tuple[str, str], str]] = EQUIVALENCES
"""Program -> (statement, change) -> what still implies the order that the change took away."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A program with one change."""

    program: str
    line: int
    statement: str
    """As it is written; the second one of a text in a function is followed by `(2)`, and so on."""
    change: str
    source: str = dataclasses.field(repr=False)
    module: str = ""
    """Of the kernel library."""

    @property
    def name(self) -> str:
        return f"{self.program}:{self.line} {self.statement}: {self.change}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a mutant: "detected", "equivalent" or "missed", and by what or why."""

    mutant: Mutant
    outcome: str
    reason: str


def programs() -> list[str]:
    """The names of the corpus."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


@functools.cache
def _said(program: str, name: str) -> Any:
    """What a program says by a literal; None if it does not."""
    for statement in ast.parse((FOLDER / f"{program}.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    return None


def library_of(program: str) -> tuple[str, ...]:
    """The modules of the kernel library that a program mutates; none if that is the program itself."""
    return _said(program, "LIBRARY") or ()


def sources(program: str) -> dict[str, str]:
    """The texts that are mutated, by the names of their modules; the program's own name is empty."""
    modules = library_of(program)
    if example := _said(program, "EXAMPLE"):
        text = (EXAMPLES / example).read_text()
        for old, new in (_said(program, "SMALLER") or {}).items():
            text = _once(text, old, new)
        return {"": text}
    if not modules:
        return {"": (FOLDER / f"{program}.py").read_text()}
    folder = Path(kiln.__file__).parent / "kernels"
    return {name: (folder / f"{name.replace('.', '/')}.py").read_text() for name in modules}


# --- making mutants --------------------------------------------------------------------------------------------------


def mutants(program: str) -> Iterator[Mutant]:
    """All mutants of a program, in the order of its lines."""
    for module, text in sources(program).items():
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            seen: dict[str, int] = {}
            if "\nGUARDS = True\n" in text:
                yield from _unguarded(program, text, function)
            place = (
                f"{module}.{function.name}: " if module else f"{function.name}: " if _said(program, "EXAMPLE") else ""
            )
            for body in _bodies(function):
                for index, statement in enumerate(body):
                    for mutant in _mutants_of(program, text, body, index, statement, seen):
                        yield dataclasses.replace(mutant, module=module, statement=place + mutant.statement)
        for change, old, new in _said(program, "CHANGED") or ():
            code = text.partition("\nCHANGED = ")[0]
            line = code[: code.index(old)].count("\n") + 1
            yield Mutant(
                program, line, old.strip().partition("\n")[0], change, text.replace(code, _once(code, old, new))
            )


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old} is {text.count(old)} times in the program"
    return text.replace(old, new)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            yield body
            for statement in body:
                yield from _bodies(statement)


def _mutants_of(
    program: str, text: str, body: list[ast.stmt], index: int, statement: ast.stmt, seen: dict[str, int]
) -> Iterator[Mutant]:
    if isinstance(statement, ast.With) and "elect_one" in ast.unparse(statement.items[0]):
        yield _by_all(program, text, statement, seen)
    value = getattr(statement, "value", None)
    if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(value, ast.Call):
        return
    name = _called(value)
    if name == "release" and library_of(program) and not _said(program, "RELEASES"):  # the library's own, of registers
        return
    mutable = _is_sync(statement) or (name in OTHERS and not library_of(program))
    weaker = list(_weaker(value, name)) if mutable else []
    if not weaker and not _is_sync(statement):
        return
    shown = re.sub(r"\b(cute\.)?arch\.|\bpipeline\.", "", ast.unparse(statement))
    seen[shown] = seen.get(shown, 0) + 1
    shown += f" ({seen[shown]})" if seen[shown] > 1 else ""

    def made(change: str, edit: Callable[[], str]) -> Mutant:
        return Mutant(program, statement.lineno, shown, change, edit())

    if isinstance(statement, ast.Expr) and _is_sync(statement):
        of = value.func.value if isinstance(value.func, ast.Attribute) else value
        left = ast.unparse(of) if isinstance(of, ast.Call) and _called(of) == "wait_and_advance" else "pass"
        yield made("deleted", lambda: _replaced(text, statement, left))
    for change, new in weaker:
        replaced = ast.unparse(statement).replace(ast.unparse(value), new)
        yield made(change, lambda replaced=replaced: _replaced(text, statement, replaced))
    if name in ARRIVALS and index and _accesses(body[index - 1]):
        yield made("one statement earlier", lambda: _swapped(text, body[index - 1], statement))
    after = body[index + 1] if index + 1 < len(body) else None
    if name in WAITS and after is not None and _accesses(after):
        yield made("one statement later", lambda: _swapped(text, statement, after))


def _by_all(program: str, text: str, elected: ast.With, seen: dict[str, int]) -> Mutant:
    """What one lane was elected for, done by all of them."""
    shown = f"with {ast.unparse(elected.items[0]).replace('cute.arch.', '')}: {ast.unparse(elected.body[0])}".partition(
        "\n"
    )[0]
    seen[shown] = seen.get(shown, 0) + 1
    shown += f" ({seen[shown]})" if seen[shown] > 1 else ""
    lines = text.splitlines(keepends=True)
    lines[elected.lineno - 1] = " " * elected.col_offset + "if True:\n"
    return Mutant(program, elected.lineno, shown, "by all lanes", "".join(lines))


def _unguarded(program: str, text: str, function: ast.FunctionDef) -> Iterator[Mutant]:
    """Without one comparison, predicate or initialization of a kernel."""
    if not any("kernel" in ast.unparse(decorator) for decorator in function.decorator_list):
        return
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            for part in parts:
                if not isinstance(part, ast.Compare) or not isinstance(part.ops[0], (ast.Lt, ast.Gt)):
                    continue
                shown = f"if {ast.unparse(node.test)}"
                yield Mutant(program, node.lineno, shown, _dropped(part), _instead(text, part, "True"))
                for wider, new in _wider(part):
                    yield Mutant(program, node.lineno, shown, wider, _instead(text, part, new))
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        shown = ast.unparse(node)
        if _called(node.value) == "fill":
            yield Mutant(program, node.lineno, shown, "deleted", _replaced(text, node, "pass"))
        if any(keyword.arg == "pred" for keyword in node.value.keywords):
            kept = [keyword for keyword in node.value.keywords if keyword.arg != "pred"]
            call = ast.Call(node.value.func, node.value.args, kept)
            new = _replaced(text, node, ast.unparse(ast.fix_missing_locations(call)))
            yield Mutant(program, node.lineno, shown, "without its predicate", new)


def _dropped(part: ast.expr) -> str:
    return f"without `{ast.unparse(part)}`"


def _wider(part: ast.Compare) -> Iterator[tuple[str, str]]:
    """A comparison that lets one more through."""
    for narrow, wide in ((ast.Lt, "<="), (ast.Gt, ">=")):
        if isinstance(part.ops[0], narrow):
            left, right = ast.unparse(part.left), ast.unparse(part.comparators[0])
            yield f"`{left} {wide} {right}`", f"{left} {wide} {right}"


def _instead(text: str, node: ast.expr, new: str) -> str:
    """The text with an expression of one line replaced."""
    assert node.lineno == node.end_lineno
    lines = text.splitlines(keepends=True)
    line = lines[node.lineno - 1]
    lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
    return "".join(lines)


def _called(value: ast.Call) -> str:
    return value.func.attr if isinstance(value.func, ast.Attribute) else ""


def _is_sync(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and any(keyword.arg == "tx_count" for keyword in value.keywords):
        return True
    if not isinstance(value, ast.Call) or _called(value) not in SYNCHRONIZING:
        return False
    return _called(value) not in ("load", "store") or any(keyword.arg == "sem" for keyword in value.keywords)


def _accesses(statement: ast.stmt) -> bool:
    """Whether a statement that can change places with another one may access memory."""
    plain = isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)) and not _is_sync(statement)
    return plain and bool(
        re.search(r"\[|\b(autovec_)?copy\(|\bgemm\(|\.(load|store|fetch)\(|bulk_", ast.unparse(statement))
    )


def _weaker(call: ast.Call, name: str) -> Iterator[tuple[str, str]]:
    """(what changes, the new expression) for each way to weaken a call."""
    text = ast.unparse(call)
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    arguments = {**dict(enumerate(call.args)), **{k.arg: k.value for k in call.keywords if k.arg}}
    for place, argument in arguments.items():
        old = ast.unparse(argument)
        for change, new in ARGUMENTS.get((name, place), ()) or ARGUMENTS.get(("", place), ()):
            if _applies(change, old, text):
                yield change, _with(call, place, new.format(old, receiver=receiver))
    if name in ("acquire_and_advance", "wait_and_advance"):
        yield "without waiting", f"({receiver}.current_handle(), {receiver}.advance())[0]"
    if name == "advance" and len(call.args) < 2:  # of a pipeline's state
        yield "twice", f"({text}, {text})"
    if name == "arrive_and_wait":
        yield "arrives without waiting", f"{receiver}.arrive()"
    if name == "sync_threads":
        yield "only the warp", text.replace("sync_threads", "sync_warp")
    if name == "barrier":
        yield "arrives without waiting", text.replace("arch.barrier(", "arch.barrier_arrive(")
        yield "for half the threads", text.replace("number_of_threads=64", "number_of_threads=32")
    if name == "mbarrier_arrive":
        yield "relaxed", text[:-1] + ", relaxed=True)"
    if name == "mbarrier_arrive_and_expect_tx":
        yield "no bytes", f"{receiver}.mbarrier_arrive({ast.unparse(call.args[0])})"
    if name == "mbarrier_init":
        count, word = (2, "two arrivals") if ast.unparse(call.args[1]) == "1" else (1, "one arrival")
        yield f"expects {word}", f"{receiver}.mbarrier_init({ast.unparse(call.args[0])}, {count})"
    if name == "make_pipeline_state":
        other = {"Producer": "Consumer", "Consumer": "Producer"}
        yield "starts in the other phase", re.sub("Producer|Consumer", lambda found: other[found[0]], text)
    if name == "cp_async_mbarrier_arrive_noinc":
        yield "arrives at once", text.replace(name, "mbarrier_arrive")
    if name == "cluster_arrive":
        yield "relaxed", text.replace("cluster_arrive", "cluster_arrive_relaxed")
    if name == "fence_acq_rel_gpu":
        yield "only the block", text.replace("_gpu", "_cta")
    if name == "copy" and re.match(
        r"(store|add).* to\w*\[None, ", ", ".join(map(ast.unparse, call.args[:1] + call.args[2:]))
    ):
        yield "to the tile before", _before(call)
    for keyword in call.keywords:
        if keyword.arg == "sem":
            yield "relaxed", text.replace(ast.unparse(keyword.value), "'relaxed'")
        if keyword.arg == "scope" and ast.unparse(keyword.value) == "'gpu'":
            yield "only the block", text.replace("'gpu'", "'cta'")


def _applies(change: str, old: str, text: str) -> bool:
    """Whether what takes the place of an argument is something else, and weaker."""
    if change == "the same for all":
        return not old.isdigit()  # the number of the barrier depends on who it is
    if change == "to one block more":
        return not old.isdigit()  # those of a cluster of two name both
    if change == "never":
        return "ACCUMULATE" in text and old != "True"
    if change == "half the columns":
        return text.startswith("tmem.")
    if change == "16 bytes further":
        return old == "1024"
    return change != "only until all is read" or "read=" not in text


def _with(call: ast.Call, place: int | str, new: str) -> str:
    """A call with another argument in one's place."""
    shown = [new if number == place else ast.unparse(argument) for number, argument in enumerate(call.args)]
    shown += [f"{k.arg}={new if k.arg == place else ast.unparse(k.value)}" for k in call.keywords]
    return f"{ast.unparse(call.func)}({', '.join(shown)})"


def _before(copy: ast.Call) -> str:
    """A copy to `to[None, tile]`, one tile before: the first one is at a negative coordinate."""
    start, tile = ast.unparse(copy.args[2])[:-1].split("None, ", 1)
    return _with(copy, 2, f"{start}None, {tile} - 1]")


def _lines(statement: ast.stmt) -> tuple[int, int]:
    assert statement.end_lineno is not None
    return statement.lineno - 1, statement.end_lineno


def _replaced(text: str, statement: ast.stmt, new: str) -> str:
    """The text with a statement replaced; other lines keep their numbers."""
    lines = text.splitlines(keepends=True)
    first, end = _lines(statement)
    indent = " " * statement.col_offset
    lines[first:end] = [f"{indent}{new}\n", *["\n"] * (end - first - 1)]
    return "".join(lines)


def _swapped(text: str, before: ast.stmt, after: ast.stmt) -> str:
    lines = text.splitlines(keepends=True)
    (a, b), (c, d) = _lines(before), _lines(after)
    return "".join([*lines[:a], *lines[c:d], *lines[b:c], *lines[a:b], *lines[d:]])


# --- running them ----------------------------------------------------------------------------------------------------


def load(program: str, name: str, changed: Mutant | None, folder: Path) -> Callable[[], bool]:
    """What runs a program as it is, or changed; the language reads sources from files of their own."""
    path = folder / f"{name}.py"
    if not library_of(program):
        path.write_text(changed.source if changed else sources(program)[""])
        if example := _said(program, "EXAMPLE"):  # it may import others of its folder
            place = str((EXAMPLES / example).parent)
            sys.path += [place] if place not in sys.path else []
        module = _module(name, path)
        return (
            functools.partial(_module(f"{name}_user", FOLDER / f"{program}.py").run, module) if example else module.run
        )
    if changed:
        path.write_text(changed.source)
    user = _module(f"{name}_user", FOLDER / f"{program}.py")
    modules: dict[str, ModuleType] = {}

    def run() -> bool:
        with _library(modules, f"kiln.kernels.{changed.module}" if changed else "", path):
            return user.run(importlib.import_module("kiln.kernels"))

    return run


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _library(modules: dict[str, ModuleType], changed: str, path: Path) -> Iterator[None]:
    """A kernel library of its own, `modules`, with one module from another file."""

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, *_: Any) -> Any:
            return importlib.util.spec_from_file_location(fullname, path) if fullname == changed else None

    def taken() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name == "kiln.kernels" or name.startswith("kiln.kernels.")]
        return {name: sys.modules.pop(name) for name in names}

    before, finder = taken(), Finder()
    sys.modules.update(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        modules.update(taken())
        sys.modules.update(before)
        if "kiln.kernels" in before:
            kiln.__dict__["kernels"] = before["kiln.kernels"]


def outcome(
    run: Callable[[], bool], seed: int, kinds: str = "default", threads: int = 0
) -> tuple[bool | None, list[Any], str]:
    """(whether the result is right, findings, fault) of one sanitized run under a schedule, with so many OS threads."""
    right, fault = None, ""
    parts.set_seed(seed)
    parts.set_max_steps(STEPS)
    parts.set_workers(threads or settings.get("KILN_CPU_THREADS"))
    try:
        with kiln.target("cpu"), kiln.sanitize(kinds, raises=False) as report:
            try:
                right = bool(run())
            except SanitizerError:
                raise
            except kiln.DSLBaseError as failure:
                fault = failure.message.partition("\n")[0]
    finally:
        parts.set_seed()
        parts.set_max_steps(0)
        parts.set_workers(settings.get("KILN_CPU_THREADS"))
    return right, report.findings, fault


def judge(mutant: Mutant, folder: Path, number: int, seeds: tuple[int, ...] = SEEDS) -> Verdict:
    """Run a mutant until it is detected."""
    run = load(mutant.program, f"mutant_{mutant.program}_{number}", mutant, folder)
    results: set[bool | None] = set()
    for seed in seeds:
        right, findings, fault = outcome(run, seed)
        if findings:
            rules = sorted({f"{finding.kind}: {finding.rule}" for finding in findings})
            return Verdict(mutant, "detected", ", ".join(rules))
        if fault:
            return Verdict(mutant, "detected", "deadlock" if "deadlock" in fault else fault)
        results.add(right)
    known = EQUIVALENT.get(mutant.program, {}).get((mutant.statement, mutant.change))
    if known is not None and results == {True}:
        return Verdict(mutant, "equivalent", known)
    return Verdict(mutant, "missed", "the result is wrong" if False in results else "the result is right")


def row(verdict: Verdict) -> str:
    """A verdict as a line of the table, in Markdown; without the number of the mutant's line, which any change of a kernel moves."""
    return f"{_begins(verdict.mutant)} {verdict.outcome} | {verdict.reason} |"


def _begins(mutant: Mutant) -> str:
    return f"| {mutant.program} | `{mutant.statement}` | {mutant.change} |"


def stale(program: str) -> list[str]:
    """Mutants of a program that there are and the record has not, and those that it has and there are not, as its lines begin."""
    kept = [line for line in recorded() if _of(line)[0] == program]
    begins = {_begins(mutant) for mutant in mutants(program)}
    missing = [f"+ {begin}" for begin in begins if not any(line.startswith(begin) for line in kept)]
    return missing + [f"- {line}" for line in kept if not line.startswith(tuple(begins))]


def recorded() -> list[str]:
    """The lines of the record, of programs that there are."""
    known, lines = set(programs()), RECORD.read_text().splitlines()
    return [line for line in lines if line.count(" | ") > 3 and line.count("`") > 1 and _of(line)[0] in known]


def _of(line: str) -> tuple[str, str]:
    """The program and the outcome of a line."""
    return line.split(" | ")[0][2:], line.rsplit(" | ", 2)[1]


def tables(lines: list[str]) -> str:
    """How many mutants of each program, and all of them, as Markdown."""
    outcomes = [_of(line) for line in lines]
    counts = ["| program | mutants | detected | equivalent | missed |", "|---|---|---|---|---|"]
    for program in [*dict.fromkeys(program for program, _ in outcomes), ""]:
        of = [outcome for name, outcome in outcomes if not program or name == program]
        cells = [str(n) for n in (len(of), *(of.count(kind) for kind in ("detected", "equivalent", "missed")))]
        counts.append("| " + " | ".join([program, *cells] if program else [f"**{c}**" for c in ("all", *cells)]) + " |")
    head = ["", "| program | statement | change | outcome | by |", "|---|---|---|---|---|"]
    return "\n".join([*counts, *head, *lines])


def page(lines: list[str]) -> str:
    """Return the record: its command, a title and the tables; mutants of a program stay in order."""
    return f"{WRITTEN}\n\n# The mutation corpus\n\n{tables(sorted(lines, key=lambda line: _of(line)[0]))}\n"


def main(words: list[str]) -> int:
    verbose = "-v" in words
    wanted = [word for word in words if not word.startswith("-")]
    verdicts: list[Verdict] = []
    lines: list[str] = []
    before = recorded() if "--new" in words else []
    kept = {line.rsplit(" | ", 2)[0] + " |": line for line in before}
    false_alarms = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in programs():
            if wanted and not any(word in program for word in wanted):
                continue
            if kept and not stale(program):
                lines += [line for line in before if _of(line)[0] == program]
                continue
            original = load(program, f"original_{program}", None, folder)
            for seed, threads in itertools.product((0, 1, 2, 3, 4), (1, 2)):
                right, findings, fault = outcome(original, seed, threads=threads)
                if findings or fault or not right:
                    false_alarms += 1
                    print(f"ORIGINAL {program} seed {seed}, {threads} worker(s): {right} {fault}", *findings, sep="\n")
            for number, mutant in enumerate(mutants(program)):
                if _begins(mutant) in kept:
                    lines.append(kept[_begins(mutant)])
                    continue
                verdict = judge(mutant, folder, number)
                verdicts.append(verdict)
                lines.append(row(verdict))
                if verbose:
                    print(f"{verdict.outcome:10} {mutant.name}: {verdict.reason}", flush=True)
    print(tables(lines))
    if "--save" in words:
        ran = {_of(line)[0] for line in lines}
        others = [line for line in recorded() if _of(line)[0] not in ran] if wanted else []
        RECORD.write_text(page(lines + others))
    counts = {kind: sum(v.outcome == kind for v in verdicts) for kind in ("detected", "equivalent", "missed")}
    print(f"\n{len(verdicts)} mutants: {counts}; false alarms on originals: {false_alarms}")
    return int(bool(counts["missed"] or false_alarms))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
