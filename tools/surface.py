"""Compare the interface of CuTe DSL with what Kiln serves as `cutlass`: modules, names, parameters and members.

    python tools/surface.py compare [FILE] [--only PREFIX] [--used]   # what Kiln lacks of it, by module
    python tools/surface.py check                # exit with 1 if Kiln lacks what surface_lacking.txt does not list
    python tools/surface.py lower                # take what Kiln serves by now out of surface_lacking.txt
    python tools/surface.py begin                # show what the newest record changes, and list what of it Kiln lacks
    python tools/surface.py record PACKAGE > FILE          # the interface of an installed package, by `inspect` alone
    python tools/surface.py compact FILE ... > surface_4_8_1.txt   # from texts with signatures and counts of users

FILE is a record, by default the newest `surface_*.txt` beside this program. `[module]` begins a module there. Then each
line is a name: `kind name uses documented (parameters) = other paths | members`. `uses` counts the files of public
libraries that use it; for those that nobody has counted it is not there. Parameters are `a`, `b=` with a default, `*` and
`**k`; `?` stands for parameters that nobody knows, `...` for those that are not recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import inspect
import io
import pkgutil
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LACKING = HERE.parent / "src" / "kiln" / "_support" / "surface_lacking.txt"
"""What Kiln lacks, a line each: `kind name`. The list only shrinks, but for the begin of a version."""

DATA_MODEL = frozenset(name for of in (int, list, dict, type(iter([]))) for name in dir(of) if name.startswith("__"))
"""The special methods of Python; others are internals of an implementation."""


@dataclass
class Name:
    """A recorded name of an interface."""

    path: str
    kind: str = "name"
    """"module", "class", "enum", "def", "value", or "name" where that is not known."""
    uses: int = 0
    documented: bool = False
    parameters: str | None = None
    """`a, b=, *, c=, **k`; None if they are not known."""
    partial: bool = False
    """Whether only some parameters are recorded."""
    aliases: list[str] = field(default_factory=list)
    members: dict[str, str | None] = field(default_factory=dict)
    """By name, with the parameters of methods."""


Names = dict[str, Name]


class Gap(NamedTuple):
    """Something that Kiln lacks. `kind` is "module", "name", "path" (there under another one), "kind", "parameter",
    "order", "required" or "member"."""

    kind: str
    path: str
    uses: int
    name: str
    """The recorded name that it is a part of."""
    note: str = ""


# ---- records


def read(path: Path) -> Names:
    """Return the names of a record."""
    names: Names = {}
    module = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            one = _read_line(line, module)
            names[one.path] = one
    return names


LINE = re.compile(r"(\w+) (\S+)(?: (\d+))?( D)?(?: \((.*?)\))?(?: = ([^|]*?))?(?: \| (.*))?$")


def _read_line(line: str, module: str) -> Name:
    match = LINE.match(line)
    assert match is not None, line
    kind, name, uses, documented, parameters, aliases, members = match.groups()
    path = f"{module}.{name}" if module else name
    one = Name(path, kind, int(uses or 0), bool(documented), aliases=(aliases or "").split())
    one.partial = parameters is not None and parameters.endswith("...")
    if parameters is not None:
        one.parameters = parameters.removesuffix("...").removesuffix(", ")
    for member in re.findall(r"([^\s(]+)(?:\(([^)]*)\))?", members or ""):
        one.members[member[0]] = member[1] if f"{member[0]}(" in (members or "") else None
    return one


def write(names: Iterable[Name], title: str) -> str:
    """Return a record as text."""
    modules: dict[str, list[str]] = defaultdict(list)
    for one in sorted(names, key=lambda one: one.path):
        module, _, name = one.path.rpartition(".")
        parts = [one.kind, name]
        parts += [str(one.uses)] if one.uses else []
        parts += ["D"] if one.documented else []
        if one.parameters is not None:
            parts.append(f"({', '.join(filter(None, [one.parameters, '...' if one.partial else '']))})")
        parts += ["=", *sorted(one.aliases)] if one.aliases else []
        if one.members:
            texts = (name if known is None else f"{name}({known})" for name, known in sorted(one.members.items()))
            parts += ["|", *texts]
        modules[module].append(" ".join(parts))
    blocks = (f"\n[{module}]\n" + "\n".join(lines) + "\n" for module, lines in sorted(modules.items()))
    return f"# {title}\n# See tools/surface.py for what a line says.\n{''.join(blocks)}"


# ---- what is recorded elsewhere


def compact(paths: Sequence[Path]) -> Names:
    """Return the names of texts with signatures, and of those with counts of users, together."""
    names: Names = {}
    bases: dict[str, list[str]] = {}
    for path in paths:
        text = path.read_text()
        if text.startswith("# signatures"):
            _read_signatures(text, names, bases)
        else:
            _read_counts(text, names)
    by_name = {one.path.rpartition(".")[2]: one for one in names.values() if one.kind == "class"}
    inherited = {
        path: {item for base in of if base in by_name for item in by_name[base].members.items()}
        for path, of in bases.items()
    }
    for path, items in inherited.items():
        names[path].members = {name: known for name, known in names[path].members.items() if (name, known) not in items}
    return names


DECLARED = re.compile(r"(def|class|enum|value|property|staticmethod|classmethod) ([\w.]+)(.*)")
MEMBER = re.compile(r"    (?:property |attr |staticmethod |classmethod )?(\w+)(.*)")


def _read_signatures(text: str, names: Names, bases: dict[str, list[str]]) -> None:
    last = Name("")
    for line in text.splitlines():
        body, _, also = line.partition("# also: ")
        aliases = [other.strip() for other in also.split(",") if other.strip()]
        if match := DECLARED.match(body):
            kind, path, rest = match.groups()
            owner = path.rpartition(".")[0]
            if owner in names and names[owner].kind in ("class", "enum"):
                called = kind not in ("value", "property")
                if not (member := path.rpartition(".")[2]).startswith("__"):
                    names[owner].members[member] = _parameters(rest) if called else None
                last = Name(path)
                continue
            last = names.setdefault(path, Name(path))
            last.kind = kind if kind in ("class", "enum", "value") else "def"
            last.aliases += aliases
            bases[path] = re.findall(r"\w+", rest.partition("  bases: ")[2])
            if kind == "enum":
                last.members = dict.fromkeys(rest.lstrip(": ").split(", "))
            elif kind != "value":
                last.parameters = _parameters(rest)
        elif body.startswith("    dunders:"):
            last.members.update(dict.fromkeys(name for name in body.split()[1:] if name in DATA_MODEL))
        elif match := MEMBER.match(body):
            name, rest = match.groups()
            if name.startswith("__"):
                continue
            last.members[name] = _parameters(rest) if rest.startswith("(") else None
        else:
            last.aliases += aliases


def _parameters(text: str) -> str | None:
    """Return `a, b=, *, c=` for "(a: int, b: int = 1, *, c: str = 'x') -> None"; None for "(?)"."""
    if not text.startswith("(") or text.startswith("(?)"):
        return None
    parts = [""]
    depth = 0
    quoted = ""
    for at, char in enumerate(text[1:], 1):
        if depth and re.match(r"[^\[]\.\.\.(, | =)", text[at - 4 : at + 2]):
            depth = 0  # an annotation that was cut
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char in "'\"":
            quoted = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                break
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return ", ".join(_parameter(part.strip()) for part in parts if part.strip() not in ("", "self"))


def _parameter(text: str) -> str:
    match = re.match(r"\*{0,2}\w*|/", text)
    assert match is not None
    return match[0] + ("=" if _has_default(text) else "")


def _has_default(text: str) -> bool:
    depth = 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "=" and depth == 0 and text[at + 1 : at + 2] != "=":
            return True
    return False


COUNTED = re.compile(r"(cutlass[\w.]*)((?: = cutlass[\w.]*)*) (?: ?)\[(\w+)\](?: files (\d+))?( D)?")
ONLY_PATH = re.compile(r"(cutlass[\w.]*)((?: = cutlass[\w.]*)*)(?: \((\d+) files by any path\))?")
KINDS = {"function": "def", "module": "module", "class": "class", "enum": "enum", "value": "value"}


def _read_counts(text: str, names: Names) -> None:
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line
        elif match := COUNTED.match(line):
            path, others, kind, uses, documented = match.groups()
            one = _one(names, [path, *others.split(" = ")[1:]])
            one.kind = KINDS.get(kind, "value") if one.kind == "name" else one.kind
            one.uses = max(one.uses, int(uses or 0))
            one.documented |= bool(documented)
        elif line.startswith("path only: "):
            for entry in line.removeprefix("path only: ").split("; "):
                if match := ONLY_PATH.match(entry):
                    one = _one(names, [match[1], *match[2].split(" = ")[1:]])
                    one.uses = max(one.uses, int(match[3] or 0))
        elif section.startswith("## Module paths") and re.match(r"\d+: ", line):
            for module in line.split()[1:]:
                _one(names, [f"cutlass.{module}"]).kind = "module"
        elif match := re.match(r"path (cutlass\S+) (\d+)", line):
            one = _one(names, [match[1]])
            one.kind = "module"
            one.uses = max(one.uses, int(match[2]))
        elif match := re.match(r"   (cutlass\S+) \[([^\]]*)\](?: \[)?", line):
            _read_parameters(names, match[1], re.findall(r"\w+", match[2]), line.count("[") > 1)
        elif section.startswith("## Members") and line.startswith("cutlass."):
            path, *members = line.split()
            known = _one(names, [path])
            known.kind = "class" if known.kind == "name" else known.kind
            for member in members:
                known.members.setdefault(member.partition("[")[0], None)


def _one(names: Names, paths: list[str]) -> Name:
    """Return the recorded name that one of these paths has, or a new one."""
    by_path = {
        path: one for one in names.values() if one.path in paths or set(one.aliases) & {*paths} for path in paths
    }
    one = by_path.get(paths[0]) or names.setdefault(paths[0], Name(paths[0]))
    one.aliases += [path for path in paths if path != one.path and path not in one.aliases]
    return one


def _read_parameters(names: Names, path: str, parameters: list[str], whole: bool) -> None:
    one = _one(names, [path])
    if one.parameters is not None and not one.partial:
        return
    if whole:
        one.parameters = ", ".join(parameters)
        one.partial = False
    elif one.parameters is None:
        one.parameters = ", ".join(f"{name}=" for name in parameters)
        one.partial = True


# ---- recording


def record(package: str) -> Names:
    """Return the public names of an installed package, found by importing its modules."""
    modules = list(_modules(package))
    values: dict[int, object] = {}
    paths: dict[int, list[str]] = defaultdict(list)
    names = {module.__name__: Name(module.__name__, "module") for module in modules}
    for module in modules:
        for attribute in _public(module):
            value = getattr(module, attribute, None)
            path = f"{module.__name__}.{attribute}"
            if isinstance(value, ModuleType):
                continue
            if not hasattr(value, "__module__"):
                names.setdefault(path, Name(path, "value"))  # equal constants may be one object
            else:
                values[id(value)] = value
                paths[id(value)].append(path)
    for key, value in values.items():
        home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        first, *others = sorted(paths[key], key=lambda path: (path != home, path.count("."), path))
        names[first] = _recorded(first, value)
        names[first].aliases = others
    return names


def _modules(package: str) -> Iterator[ModuleType]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        top = importlib.import_module(package)
        yield top
        for info in pkgutil.walk_packages(getattr(top, "__path__", ()), f"{package}.", onerror=lambda name: None):
            if not any(part.startswith("_") for part in info.name.split(".")):
                with contextlib.suppress(Exception, SystemExit):
                    yield importlib.import_module(info.name)


def _public(module: ModuleType) -> list[str]:
    """Return the names that a module offers: `__all__`, or those without an underscore that its package defines."""
    if (listed := getattr(module, "__all__", None)) is not None:
        return sorted(listed)
    package = module.__name__.partition(".")[0]
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (getattr(value, "__module__", None) or package).partition(".")[0] == package
    )


def _recorded(path: str, value: object) -> Name:
    one = Name(path, "value")
    if isinstance(value, type):
        one.kind = "enum" if issubclass(value, enum.Enum) else "class"
        if one.kind == "class":
            one.parameters = _text_of(value)
        for name, member in inspect.getmembers_static(value) if sys.version_info >= (3, 11) else _static_members(value):
            if not name.startswith("_") or (one.kind == "class" and name in DATA_MODEL - {*dir(object)}):
                one.members[name] = _text_of(member) if _is_method(member) and not name.startswith("_") else None
    elif callable(value):
        one.kind = "def"
        one.parameters = _text_of(value)
    return one


def _static_members(cls: type) -> list[tuple[str, object]]:
    return [(name, inspect.getattr_static(cls, name)) for name in dir(cls)]


def _is_method(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, (staticmethod, classmethod))


def _text_of(value: object) -> str | None:
    from kiln.workbench.core import served_names

    signature = served_names.signature(value)
    if signature is None:
        return None
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return ", ".join(_texts(parameters))


def _texts(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            starred = True
            yield f"*{one.name}"
        elif one.kind is one.VAR_KEYWORD:
            yield f"**{one.name}"
        else:
            if one.kind is one.KEYWORD_ONLY and not starred:
                starred = True
                yield "*"
            yield one.name + ("" if one.default is one.empty else "=")


# ---- comparing


def gaps(names: Names) -> Iterator[Gap]:
    """Yield what Kiln lacks of a recorded interface."""
    from kiln.workbench.core import served_names
    from kiln.workbench.core.served_names import Lacking

    for one in sorted(names.values(), key=lambda one: one.path):
        found = {path: _find(path, one.kind) for path in (one.path, *one.aliases)}
        there = [served for served in found.values() if not isinstance(served, Lacking)]
        if not there:
            why = found[one.path]
            note = why.why if isinstance(why, Lacking) and why.why != "missing" else ""
            yield Gap("module" if one.kind == "module" else "name", one.path, one.uses, one.path, note)
            continue
        for path, served in found.items():
            if isinstance(served, Lacking):
                yield Gap("module" if one.kind == "module" else "path", path, one.uses, one.path)
        served = there[0]
        if one.kind in ("class", "enum") and not isinstance(served, type):
            yield Gap("kind", one.path, one.uses, one.path, f"a {one.kind} there, here {type(served).__name__}")
            continue
        if one.parameters is not None:
            only_names = one.partial or (one.kind == "class" and not one.parameters)
            yield from _parameter_gaps(one, one.path, one.parameters, served, only_names)
        if isinstance(served, type):
            yield from _member_gaps(one, served, served_names)


def _find(path: str, kind: str) -> object:
    from kiln.workbench.core import served_names

    return served_names.module(path) if kind == "module" else served_names.find(path)


def _member_gaps(one: Name, cls: type, served_names: ModuleType) -> Iterator[Gap]:
    for name, parameters in sorted(one.members.items()):
        member = served_names.find(f"{one.path}.{name}")
        if isinstance(member, served_names.Lacking):
            yield Gap("member", f"{one.path}.{name}", one.uses, one.path)
        elif parameters is not None:
            yield from _parameter_gaps(one, f"{one.path}.{name}", parameters, member)


def _parameter_gaps(of: Name, path: str, recorded: str, served: object, only_names: bool = False) -> Iterator[Gap]:
    from kiln.workbench.core import served_names

    signature = served_names.signature(served)
    if signature is None:
        return
    here = dict(signature.parameters)
    if here and next(iter(here)) in ("self", "cls"):
        del here[next(iter(here))]
    anything = any(one.kind is one.VAR_KEYWORD for one in here.values())
    any_number = any(one.kind is one.VAR_POSITIONAL for one in here.values())
    named = {name for name, one in here.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    positional = [name for name, one in here.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)]
    there = recorded.split(", ") if recorded else []
    star = next((at for at, part in enumerate(there) if part.startswith("*")), len(there))
    before = [part.rstrip("=") for part in there[:star] if part != "/"]
    keywords = [part.rstrip("=") for part in there[star:] if not part.startswith("*")]
    for name in (*before, *keywords):
        if name not in named and not anything and not name.startswith("_"):
            yield Gap("parameter", f"{path}({name})", of.uses, of.path)
    by_position = [name for name in before if name not in ("loc", "ip")]
    if (
        not any_number
        and not only_names
        and any(name in named and positional[at : at + 1] != [name] for at, name in enumerate(by_position))
    ):
        yield Gap("order", f"{path}({', '.join(by_position)})", of.uses, of.path, f"here: {', '.join(positional)}")
    if only_names or any(re.match(r"\*+\w", part) for part in there):
        return
    for name, one in here.items():
        renamed = name in positional[: len(by_position)]
        if name in named and one.default is one.empty and not renamed and name not in (*before, *keywords):
            yield Gap("required", f"{path}({name})", of.uses, of.path)


def parts(names: Names) -> set[str]:
    """Return all that a record says is there: paths, `path(parameter)` and `path.member`."""
    every: set[str] = set()
    for one in names.values():
        every |= {one.path, *one.aliases, *_parameters_of(one.path, one.parameters)}
        for member, parameters in one.members.items():
            every |= {f"{one.path}.{member}", *_parameters_of(f"{one.path}.{member}", parameters)}
    return every


def _parameters_of(path: str, recorded: str | None) -> Iterator[str]:
    for part in (recorded or "").split(", "):
        if re.match(r"\w", part):
            yield f"{path}({part.rstrip('=')})"


# ---- versions


def records() -> list[Path]:
    """Return the records, the newest last."""
    return sorted(HERE.glob("surface_[0-9]*.txt"), key=_numbers)


def newest() -> Path:
    """Return the record of the newest version."""
    return records()[-1]


def _numbers(record: Path) -> list[int]:
    return [int(part) for part in record.stem.split("_")[1:]]


def release(record: Path) -> str:
    """Return the version that a record is of."""
    return ".".join(map(str, _numbers(record)))


def every_gap() -> Iterator[Gap]:
    """Yield what Kiln lacks of the newest version, and of what older ones had besides."""
    import surface_versions

    *older, last = records()
    names = read(last)
    yield from gaps(names)
    there = parts(names)
    for record in older:
        for gap in gaps(read(record)):
            if gap.path not in there and gap.kind not in ("kind", "order", "required"):
                yield gap._replace(kind="older")
    yield from surface_versions.gaps()


def changed() -> tuple[set[str], set[str]]:
    """Return what the newest record has and the one before does not, and what only that one has."""
    before, now = (parts(read(record)) for record in records()[-2:])
    return now - before, before - now


# ---- the command line


def listed() -> set[tuple[str, str]]:
    """Return what Kiln is known to lack."""
    lines = LACKING.read_text().splitlines() if LACKING.exists() else []
    return {(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line and not line.startswith("#")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    comparing = verbs.add_parser("compare", help="show what Kiln lacks, by module")
    comparing.add_argument("file", nargs="?", type=Path)
    comparing.add_argument("--only", default="cutlass", metavar="PREFIX", help="names that begin so")
    comparing.add_argument("--used", action="store_true", help="only what public libraries use or documents name")
    comparing.add_argument("--kind", help="only gaps of this kind: module, name, path, parameter, member, ...")
    verbs.add_parser("check", help="exit with 1 if Kiln lacks what surface_lacking.txt does not list")
    verbs.add_parser("lower", help="take what Kiln serves by now out of surface_lacking.txt")
    verbs.add_parser("begin", help="show what the newest record changes, and list what of it Kiln lacks")
    verbs.add_parser("record", help="print the interface of an installed package").add_argument("package")
    verbs.add_parser("compact", help="print a record made of texts").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args(argv)
    if args.verb == "record":
        print(write(record(args.package).values(), f"{args.package}, recorded by inspect"), end="")
        return 0
    if args.verb == "compact":
        names = compact(args.files)
        print(
            write(names.values(), "nvidia-cutlass-dsl: names, kinds, files that use them, parameters, members"), end=""
        )
        return 0
    if args.verb == "compare":
        return _compare(args)
    if args.verb == "begin":
        return _begin()
    return _hold(args.verb == "lower")


def _compare(args: argparse.Namespace) -> int:
    names = read(args.file or newest())
    of_interest = {one.path for one in names.values() if one.documented or one.uses}
    missing = [
        gap
        for gap in gaps(names)
        if gap.path.startswith(args.only)
        and (not args.used or gap.uses or gap.path in of_interest)
        and args.kind in (None, gap.kind)
    ]
    modules: dict[str, list[Gap]] = defaultdict(list)
    for gap in missing:
        modules[gap.path.partition("(")[0].rpartition(".")[0]].append(gap)
    for module, of_module in sorted(modules.items()):
        print(f"{module}: {len(of_module)}")
        for gap in sorted(of_module, key=lambda gap: (-gap.uses, gap)):
            print(f"  {gap.kind:<10} {gap.uses or '':>5}  {gap.path.removeprefix(f'{module}.')}  {gap.note}".rstrip())
    lacking = [gap for gap in missing if not gap.note.startswith("placeholder")]
    counts = Counter(gap.kind for gap in lacking)
    used = Counter(gap.kind for gap in lacking if gap.uses)
    said = ", ".join(f"{counts[kind]} {kind} ({used[kind]} used)" for kind in sorted(counts))
    said += f"; {placeholders} placeholders say why" if (placeholders := len(missing) - len(lacking)) else ""
    print(f"{len(names)} names recorded; Kiln lacks: {said or 'nothing'}")
    return bool(lacking)


def _begin() -> int:
    from kiln.base_dsl import settings

    version = release(newest())
    new, gone = changed()
    lacking = {(gap.kind, gap.path) for gap in gaps(read(newest())) if gap.path.partition("(")[0] in _heads(new)}
    before = listed()
    absent = {path for _, path in lacking}
    for path in sorted(_outermost(new)):
        print(f"new   {path}{'   Kiln lacks it' if path in absent else ''}")
    for path in sorted(_outermost(gone)):
        print(f"gone  {path}   it stays")
    _write({("older" if path in gone else kind, path) for kind, path in before} | lacking)
    print(f"{version} after {release(records()[-2])}: {len(lacking - before)} more lines in {LACKING.name}")
    if version not in settings.CUTLASS_VERSIONS:
        print(
            f"to serve it, add {version} to _RELEASES in kiln/base_dsl/settings.py, and run python -m kiln.base_dsl.settings"
        )
    return 0


def _heads(paths: set[str]) -> set[str]:
    return {path.partition("(")[0] for path in paths}


def _outermost(paths: set[str]) -> Iterator[str]:
    """Yield paths without the parameters and members of those that are among them."""
    for path in paths:
        head, parameter, _ = path.partition("(")
        if not (parameter and head in paths) and head.rpartition(".")[0] not in paths:
            yield path


def _write(lacking: Iterable[tuple[str, str]]) -> None:
    import surface_versions

    header = "# What Kiln lacks of the recorded interface; the list only shrinks: python tools/surface.py lower"
    LACKING.write_text("\n".join([header, *sorted(f"{kind} {path}" for kind, path in lacking), ""]))
    surface_versions.PAGE.write_text(surface_versions.page())


def _hold(lower: bool) -> int:
    missing = list(every_gap())
    before = listed()
    whole = {path for kind, path in before if kind in ("name", "module")}
    in_part = {path.partition("(")[0] for kind, path in before if kind == "parameter"}
    # Who serves a name that was missing may leave out a part of it; who adds its parameters, their order.
    allowed = [
        gap
        for gap in missing
        if (gap.kind, gap.path) in before
        or gap.name in whole
        or (gap.kind in ("order", "required") and gap.path.partition("(")[0] in in_part)
    ]
    left = {(gap.kind, gap.path) for gap in allowed}
    if lower:
        _write(left)
        print(f"{LACKING.name}: {len(before)} lines before, {len(left)} now")
        return 0
    new = sorted({(gap.kind, gap.path) for gap in missing} - left)
    print("\n".join(f"Kiln lacks the {kind} {path}" for kind, path in new))
    if gone := len(before - {(gap.kind, gap.path) for gap in missing}):
        print(f"{gone} lines of {LACKING.name} can go: python tools/surface.py lower")
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
