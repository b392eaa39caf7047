"""Compile options: `cute.compile(f, options="--opt-level 2 --keep-ptx")` and `cute.compile[OptLevel(2), KeepPTX](f)`.

Each option is a class; `CompileOptions` collects them from strings, from option objects, or both. Packages register
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from . import conventions, settings
from .conventions import Convention
from .diagnostics import DSLRuntimeError, runtime_error


class CompileOption:
    """One option with its value. `flag` is its spelling in a string (empty: object form only)."""

    field: ClassVar[str] = ""
    flag: ClassVar[str] = ""
    kind: ClassVar[type] = bool
    default: ClassVar[Any] = False
    setting: ClassVar[str] = ""
    """The setting that provides its default."""
    convention: ClassVar[str] = ""
    """The calling convention that it chooses where it is on."""

    def __init__(self, val: object = True) -> None:
        self.value: Any = self.check(val)

    @classmethod
    def check(cls, value: object) -> Any:
        """Return the value if it suits the option; raise an error otherwise."""
        if cls.kind is bool and isinstance(value, int) and value in (0, 1):
            return bool(value)
        if not isinstance(value, cls.kind) or (cls.kind is int and isinstance(value, bool)):
            raise DSLRuntimeError(f"{cls.__name__} takes a value of type {cls.kind.__name__}, not {value!r}")
        return value

    @classmethod
    def parse(cls, text: str) -> Any:
        """Return the value of the option in a string."""
        if cls.kind is int:
            try:
                return cls.check(int(text))
            except ValueError:
                raise DSLRuntimeError(f"option {cls.flag} takes an integer, not {text!r}") from None
        return cls.check(text)

    def serialize(self) -> str:
        """Return the option as a string for `options=`; one without such a spelling, by the name of its field."""
        import shlex

        if self.kind is bool and self.flag:
            return self.flag if self.value else f"{self.flag}=0"
        return f"{self.flag or self.field}={shlex.quote(str(self.value))}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == getattr(other, "value", None)

    def __hash__(self) -> int:
        return hash((type(self), self.value))


class BooleanCompileOption(CompileOption):
    """An option that is on or off; the class itself means on."""


class KeptArtefact(BooleanCompileOption):
    """An option that keeps an artefact, as a file too."""

    def __init__(self, val: object = True) -> None:
        super().__init__(val)
        self.dump_path: str = settings.get("CUTE_DSL_DUMP_DIR")
        """The folder that artefacts are written to; assigned, it is as `DumpDir`."""


class StringCompileOption(CompileOption):
    """An option with a text."""

    kind = str
    default = ""

    def __init__(self, val: str = "") -> None:
        super().__init__(val)


class OptLevel(CompileOption):
    """Optimization level, 0 to 3."""

    field: str = "opt_level"
    flag: str = "--opt-level"
    kind: type = int
    default = 3

    def __init__(self, val: int) -> None:
        super().__init__(val)

    @classmethod
    def check(cls, value: Any) -> int:
        value = super().check(value)
        if not 0 <= value <= 3:
            raise DSLRuntimeError(f"the optimization level is 0 to 3, not {value}")
        return value


class EnableAssertions(BooleanCompileOption):
    """`cute.testing.assert_` is checked, on the host and on the device."""

    field: str = "enable_assertions"
    flag: str = "--enable-assertions"
    setting: str = "CUTE_DSL_ENABLE_ASSERTIONS"


class GenerateLineInfo(BooleanCompileOption):
    """Put source lines into the compiled code."""

    field: str = "generate_line_info"
    flag: str = "--generate-line-info"
    setting: str = "CUTE_DSL_LINEINFO"


HOSTS = ("x86_64", "aarch64")
"""Architectures that host code can be compiled for."""


def parsed_host_target(text: str, said: str = "--host-target ") -> tuple[str, str, str]:
    """Return the triple, processor and features that `--host-target`, or `said`, names; the latter may be empty."""
    words = text.split()
    settings = {"-mtriple": "", "-mcpu": "", "-mattr": ""}
    if len(words) == 1 and words[0].startswith("linux-"):
        settings["-mtriple"] = f"{words[0].removeprefix('linux-')}-unknown-linux-gnu"
    elif words[:1] == ["llvm"]:
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if name not in settings or not equals:
                raise runtime_error(f"{said}{text!r}: {word!r} is none of {', '.join(settings)}=...")
            settings[name] = value
    triple = settings["-mtriple"]
    if triple.partition("-")[0] not in HOSTS or "linux" not in triple:
        raise runtime_error(
            f"{said}{text!r} names no machine that host code can be compiled for",
            f"linux-x86_64, linux-aarch64, or 'llvm -mtriple=T [-mcpu=C] [-mattr=F]' with T for Linux on {' or '.join(HOSTS)}",
        )
    return triple, settings["-mcpu"], settings["-mattr"]


class HostTarget(StringCompileOption):
    """The machine to compile host code for, ahead of time: `linux-aarch64`, or `llvm -mtriple=... [-mcpu=...]`."""

    field: str = "host_target"
    flag: str = "--host-target"

    @classmethod
    def check(cls, value: Any) -> str:
        value = super().check(value)
        if value:
            parsed_host_target(value)
        return value


class FrontendNext(BooleanCompileOption):
    """The staged front end."""

    field = "frontend_next"


class EnablePyIR(BooleanCompileOption):
    """The front end of CuTe DSL 4.8: accepted, since Kiln has one front end."""

    field = "enable_pyir"
    flag: str = "--enable-pyir"


class DumpDir(StringCompileOption):
    """The folder that kept artefacts are written to."""

    field: str = "dump_dir"
    setting: str = "CUTE_DSL_DUMP_DIR"


OPTIONS: list[type[CompileOption]] = []
"""All options."""
_BY_FLAG: dict[str, type[CompileOption]] = {}
_BY_FIELD: dict[str, type[CompileOption]] = {}


def register(*options: type[CompileOption]) -> None:
    """Register options."""
    OPTIONS.extend(options)
    _BY_FLAG.update((option.flag, option) for option in options if option.flag)
    _BY_FIELD.update((option.field, option) for option in options)


register(OptLevel, EnableAssertions, GenerateLineInfo, HostTarget, FrontendNext, EnablePyIR, DumpDir)


def suggestion(text: str, names: Iterable[str]) -> str:
    """Return the most similar option, or all of them."""
    names = list(names)
    import difflib

    close = difflib.get_close_matches(text, names, 1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


class CompileOptions:
    """The options of one compilation: `options.opt_level`, `options.keep_ptx`, ... Later ones win.

    Made from a string, option objects, option classes (for those that are on or off), other `CompileOptions`, or a
    sequence of these. `CUTE_DSL_COMPILER_OPT` comes first.
    """

    opt_level: int
    enable_assertions: bool
    generate_line_info: bool
    host_target: str
    checks: str
    frontend_next: bool
    enable_pyir: bool
    dump_dir: str

    def __init__(self, *values: object) -> None:
        self._values: dict[str, Any] = {}
        common = settings.get("CUTE_DSL_COMPILER_OPT")
        if common:
            self._parse(common)
        for item in values:
            self._add(item)

    def _add(self, item: Any) -> None:
        if item is None:
            return
        if isinstance(item, CompileOptions):
            self._values.update(item._values)
        elif isinstance(item, str):
            self._parse(item)
        elif isinstance(item, CompileOption):
            self._values[item.field] = item.value
            if isinstance(item, KeptArtefact) and item.dump_path != settings.get("CUTE_DSL_DUMP_DIR"):
                self._values[DumpDir.field] = item.dump_path
        elif isinstance(item, type) and issubclass(item, BooleanCompileOption):
            self._values[item.field] = True
        elif isinstance(item, (tuple, list)):
            for part in item:
                self._add(part)
        elif isinstance(item, type) and issubclass(item, CompileOption):
            raise DSLRuntimeError(f"{item.__name__} needs a value", hint=f"write {item.__name__}(...)")
        else:
            raise DSLRuntimeError(
                f"{item!r} is not a compile option",
                hint=f"options are strings or {', '.join(o.__name__ for o in OPTIONS)}",
            )

    def _parse(self, text: str) -> None:
        try:
            import shlex

            words = shlex.split(text)
        except ValueError as reason:
            raise DSLRuntimeError(f"compile options {text!r}: {reason}") from None
        while words:
            word = words.pop(0)
            flag, equals, value = word.partition("=")
            option = _BY_FLAG.get(flag)
            if option is None:
                raise DSLRuntimeError(f"unknown compile option {flag!r}", hint=suggestion(flag, _BY_FLAG))
            if option.kind is bool:
                if equals and value.lower() not in ("0", "1", "true", "false"):
                    raise DSLRuntimeError(f"option {flag} takes no value, or 0 or 1, not {value!r}")
                self._values[option.field] = not equals or value.lower() in ("1", "true")
                continue
            if not equals:
                if not words:
                    raise DSLRuntimeError(f"option {flag} needs a value")
                value = words.pop(0)
            self._values[option.field] = option.parse(value)

    def is_set(self, field: str) -> bool:
        """Return whether an option was given, by whatever value."""
        return field in self._values

    def __getattr__(self, field: str) -> Any:
        if field.startswith("_") or field not in _BY_FIELD:
            raise AttributeError(field)
        if field in self._values:
            return self._values[field]
        option = _BY_FIELD[field]
        return settings.get(option.setting) if option.setting else option.default

    @property
    def convention(self) -> Convention:
        """The calling convention of compiled functions."""
        chosen = [option.convention for option in OPTIONS if option.convention and getattr(self, option.field)]
        return conventions.convention(chosen[0]) if chosen else conventions.PYTHON

    def kept(self) -> frozenset[str]:
        """Return the artefacts to keep as files and on the compiled function, by these options or the environment."""
        fields = ((kind, f"keep_{kind}") for kind in settings.KEEPABLE)
        return settings.kept() | {kind for kind, field in fields if field in _BY_FIELD and getattr(self, field)}

    def key(self) -> tuple[tuple[str, Any], ...]:
        """Return the values of all options that can change the code, for a cache key."""
        return tuple(
            (field, getattr(self, field))
            for field in sorted(_BY_FIELD)
            if not field.startswith(("keep_", "checks", "dump_dir"))
        )

    def __repr__(self) -> str:
        inside = ", ".join(repr(_BY_FIELD[field](value)) for field, value in self._values.items())
        return f"CompileOptions({inside})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompileOptions) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values.items())))
