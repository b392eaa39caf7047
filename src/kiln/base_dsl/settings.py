"""Every environment variable Kiln reads, in one typed table.

`get("CUTE_DSL_ARCH")` reads the environment at the time of the call. A value that does not fit the setting's type is
an error that names the variable, the value and what it takes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .diagnostics import DSLRuntimeError

_begun_in = ""
with contextlib.suppress(OSError):  # it is gone
    _begun_in = os.getcwd()

KEEPABLE = ["ir", "ir-debug", "llvm", "asm", "object"]
"""Artefacts of a compiled function, `all` of `CUTE_DSL_KEEP`."""

_STEPS = ("python", "passes")
"""Steps on the way to them, which are written as files only."""
_KEPT_BY_NAME = ("ir", "ptx", "cubin", "sass")
"""Artefacts for which CuTe DSL has variables of their own, which work here: `CUTE_DSL_KEEP_PTX=1`."""

GONE = {
    "KILN_DUMP": "CUTE_DSL_KEEP takes the same words",
    "KILN_SANITIZE_REPORT": "KILN_REPORT names the file of all reports",
    "KILN_BANK_CONFLICTS_REPORT": "KILN_REPORT names the file of all reports",
    "KILN_COALESCING_REPORT": "KILN_REPORT names the file of all reports",
    "KILN_COMPILE_PROCESSES": "pass compile_processes=... to tune or autotune_jit of kiln.cute.testing",
}
"""Variables of earlier releases, with what to write instead."""

_RELEASES = {"4.2": 2, "4.3": 6, "4.4": 3, "4.5": 4, "4.6": 4, "4.7": 2, "4.8": 2}
CUTLASS_VERSIONS = [f"{minor}.{patch}" for minor, count in _RELEASES.items() for patch in range(count)]
"""Releases of CuTe DSL whose names Kiln has."""

CODE_VARIABLES: list[bytes] = []
"""Settings that change the code of a module."""


class Setting(NamedTuple):
    """An environment variable. `parse` turns its text into a value or raises ValueError; `takes` says what is valid."""

    name: str
    takes: str | Callable[[], str]
    default: Any
    doc: str
    parse: Callable[[str], Any]
    code: bool = False
    """Whether it changes the code of a module."""

    def read(self) -> Any:
        """Return the value now: the environment's, or the default (called, if it is a function)."""
        text = os.environ.get(self.name)
        if text is None or not text.strip():
            return self.default() if callable(self.default) else self.default
        try:
            return self.parse(text.strip())
        except ValueError as reason:
            raise DSLRuntimeError(
                f"environment variable {self.name}={text!r}: {reason}" if str(reason) else f"{self.name}={text!r}",
                hint=f"{self.name} takes {self.what_it_takes()}",
            ) from None

    def what_it_takes(self) -> str:
        """Return `takes`, in words."""
        return self.takes() if callable(self.takes) else self.takes


# What settings take: functions from text to a value.


def truth(text: str) -> bool:
    """Return 0 or 1 as a bool, in one of several spellings."""
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("not a truth value")


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return an integer in a range, both ends included."""

    def parse(text: str) -> int:
        try:
            value = int(text, 0)
        except ValueError:
            raise ValueError("not an integer") from None
        if not low <= value <= high:
            raise ValueError(f"outside {low} to {high}")
        return value

    return parse


def seconds(text: str) -> float:
    """Return a time in seconds."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if not 0 <= value < 1e9:
        raise ValueError("outside 0 to 1e9")
    return value


def choice(*choices: str) -> Callable[[str], str]:
    """Return one of several words."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return parse


def _artefacts(text: str) -> frozenset[str]:
    items = {item.strip().lower() for item in text.split(",")} - {""}
    choices = (*KEEPABLE, *_STEPS)
    unknown = sorted(items - {*choices, "all"})
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; expected some of {', '.join(choices)}, or all")
    return frozenset(items - {"all"}).union(KEEPABLE if "all" in items else ())


def _text(text: str) -> str:
    return text


def path(text: str) -> str:
    """Return a path, with `~` for a home directory."""
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"there is no home directory of {text.partition('/')[0][1:] or 'this user'}")
    return expanded


def report_path(text: str) -> str:
    """Return a path for the end of the process: where the program was begun, wherever it has gone since."""
    return text if text == "-" else os.path.join(_begun_in, path(text))


def _default_cache_dir() -> str:
    """Return `kiln` in the user's cache directory; nothing for a user who has no home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        home = os.environ.get("HOME") or _home_of_record()
        root = os.path.join(home, ".cache") if os.path.isabs(home) else ""
    return os.path.join(root, "kiln") if root else ""


def _home_of_record() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, ImportError):  # a user by number only, as in many containers
        return ""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return min(256, len(os.sched_getaffinity(0)))
    return min(256, os.cpu_count() or 1)


def _under_debug() -> bool:
    return get("CUTE_DSL_DEBUG")


TRUTH = "0 or 1"
_LEVELS = "0 off, 1 all, 10 debug, 20 info, 30 warning, 40 error, 50 critical"

SETTINGS: dict[str, Setting] = {}
"""All settings by name."""


def register(*settings: Setting) -> None:
    """Register settings: each room registers those it reads."""
    for setting in settings:
        SETTINGS[setting.name] = setting
        if setting.code:
            CODE_VARIABLES.append(setting.name.encode())


register(
    Setting(
        "KILN_TARGET",
        "the name of a target",
        "",
        "Where programs run: `cpu` or `nvidia`. Unset: the GPU if there is one, else the CPU.",
        str.lower,
    ),
    Setting(
        "KILN_CUTLASS_VERSION",
        f"a release of CuTe DSL, {CUTLASS_VERSIONS[0]} to {CUTLASS_VERSIONS[-1]}",
        CUTLASS_VERSIONS[-1],
        "What `cutlass.__version__` and the installed version of `nvidia-cutlass-dsl` are, which programs ask for. It changes nothing else: the names of all releases are there.",
        choice(*CUTLASS_VERSIONS),
    ),
    Setting(
        "KILN_TIMING",
        TRUTH,
        lambda: is_on("CUTE_DSL_JIT_TIME_PROFILING"),
        "Print on standard error how long each stage of a compilation took. What comes from the cache has none. On under `CUTE_DSL_JIT_TIME_PROFILING`.",
        truth,
    ),
    Setting(
        "KILN_CHECK_STALE",
        TRUTH,
        False,
        "Trace a jit function again at every call, compare with what is in use, and raise an error that shows the first difference: something was read that Kiln does not see. Slow.",
        truth,
    ),
    Setting(
        "KILN_VERIFY_PASSES",
        TRUTH,
        _under_debug,
        "Verify the module after every pass. On under `CUTE_DSL_DEBUG`.",
        truth,
    ),
    Setting(
        "CUTE_DSL_KEEP",
        lambda: f"a comma list of {', '.join(KEEPABLE)}; or all; and of {', '.join(_STEPS)}",
        frozenset(),
        "Artefacts to write to `CUTE_DSL_DUMP_DIR` and to keep on the compiled function. `python` writes the rewritten Python, `passes` the module after each pass.",
        _artefacts,
    ),
    Setting(
        "CUTE_DSL_DUMP_DIR",
        "a path",
        os.getcwd,
        "Where artefacts are written. Unset: the current directory; for what LLVM or ptxas rejected, a new temporary folder.",
        path,
    ),
    Setting("CUTE_DSL_ENABLE_ASSERTIONS", TRUTH, False, "The default of `--enable-assertions`.", truth, code=True),
    Setting(
        "CUTE_DSL_WARNINGS_AS_ERRORS",
        TRUTH,
        False,
        "Raise Kiln's warnings. Read when Kiln is imported, as is `CUTE_DSL_WARNINGS_IGNORE`; `warnings` has more.",
        truth,
    ),
    Setting("CUTE_DSL_WARNINGS_IGNORE", TRUTH, False, "Do not show Kiln's warnings.", truth),
    Setting("CUTE_DSL_PRINT_IR", TRUTH, False, "Print the traced module to standard output.", truth),
    Setting(
        "CUTE_DSL_LINEINFO",
        TRUTH,
        _under_debug,
        "Put source lines into compiled code. On under `CUTE_DSL_DEBUG`.",
        truth,
    ),
    Setting(
        "CUTE_DSL_DEBUG",
        TRUTH,
        False,
        "Raise the defaults: line information, whole stack traces, optimization warnings, verification of every pass, full validation of arguments.",
        truth,
    ),
    Setting(
        "CUTE_DSL_FILTER_STACKTRACE",
        TRUTH,
        lambda: not (_under_debug() or is_on("CUTE_DSL_SHOW_STACKTRACE")),
        "Leave Kiln's own frames out of stack traces. Off under `CUTE_DSL_DEBUG` and `CUTE_DSL_SHOW_STACKTRACE`.",
        truth,
    ),
    Setting("CUTE_DSL_LOG_TO_CONSOLE", TRUTH, False, "Log to standard error.", truth),
    Setting("CUTE_DSL_LOG_TO_FILE", TRUTH, False, "Log to a file `kiln-<process>.log` in `CUTE_DSL_DUMP_DIR`.", truth),
    Setting(
        "CUTE_DSL_LOG_LEVEL", _LEVELS, 1, "How much is logged: messages of this level and above.", whole_number(0, 50)
    ),
    Setting(
        "CUTE_DSL_CACHE_DIR",
        "a path",
        _default_cache_dir,
        "Where compiled code is cached. Unset: `kiln` in `XDG_CACHE_HOME` or `~/.cache`. Kiln does not use a directory that others could write to or replace: it says so, and caches for the life of the process. Write permission for a group is fine if the group is the user's own (same name and nobody else in it). So is a parent directory with the sticky bit, such as `/tmp`.",
        path,
    ),
    Setting(
        "CUTE_DSL_DISABLE_FILE_CACHING",
        TRUTH,
        lambda: is_on("CUTE_DSL_NO_CACHE"),
        "Keep compiled code in memory only. On under `CUTE_DSL_NO_CACHE`.",
        truth,
    ),
    Setting(
        "CUTE_DSL_COMPILER_OPT",
        "compile options",
        "",
        "Options applied to every compilation, before those of the call.",
        _text,
        code=True,
    ),
)


_environment: Any = (
    getattr(os.environ, "_data", None) if os.name == "posix" else None
)  # os.environ encodes names each time


def code_is_chosen() -> bool:
    """Return whether the environment may change the code of a module. Quick."""
    if _environment is None:
        return True
    for name in CODE_VARIABLES:  # noqa: SIM110 - a generator would cost more than the rest
        if name in _environment:
            return True
    return False


def get(name: str) -> Any:
    """Return the value of a setting now."""
    return SETTINGS[name].read()


def is_set(name: str) -> bool:
    """Return whether the environment gives a setting a value."""
    return bool(os.environ.get(name, "").strip())


def is_on(name: str) -> bool:
    """Return whether a variable of CuTe DSL that stands for a part of a setting is on."""
    return Setting(name, TRUTH, False, "", truth).read()


def refuse_gone(*names: str) -> None:
    """Refuse variables of earlier releases where they would have had an effect."""
    for name in filter(is_set, names):
        raise DSLRuntimeError(f"environment variable {name} is not read any more", hint=GONE[name])


def kept() -> frozenset[str]:
    """Return the artefacts and steps that the environment asks for."""
    refuse_gone("KILN_DUMP")
    return get("CUTE_DSL_KEEP") | {kind for kind in _KEPT_BY_NAME if is_on(f"CUTE_DSL_KEEP_{kind.upper()}")}


def markdown_table() -> str:
    """Return the table of `docs/settings.md`."""
    lines = ["| variable | takes | default | effect |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = setting.default
        if callable(default):
            default = "see effect"
        elif isinstance(default, bool):
            default = int(default)
        elif default in ("", frozenset()):
            default = "unset"
        lines.append(f"| `{setting.name}` | {setting.what_it_takes()} | {default} | {setting.doc} |")
    return "\n".join(lines) + "\n"


_PAGE = """# Settings

Kiln reads these environment variables, each at the time it is needed. `KILN_...` are Kiln's own; `CUTE_DSL_...` have the
names of CuTe DSL.

Variables that CuTe DSL has for parts of these work as well: `CUTE_DSL_KEEP_IR=1`, `CUTE_DSL_KEEP_PTX=1`,
`CUTE_DSL_KEEP_CUBIN=1` and `CUTE_DSL_KEEP_SASS=1` are words of `CUTE_DSL_KEEP`, and `CUTE_DSL_LOG_AUTOTUNE=1` logs what
the autotuner tries. `CUTE_DSL_USE_EXTENSION_COMPILER` is not needed. These variables and options of CuTe DSL have no
effect; the options raise an error that names those there are:

| not read | in Kiln |
|---|---|
| `CUTE_DSL_DRYRUN` | `cute.compile` compiles and runs nothing; `kiln run --target cpu` needs no GPU |
| `CUTE_DSL_PRINT_AFTER_PREPROCESSOR` | `CUTE_DSL_KEEP=python` writes the rewritten Python |
| `CUTE_DSL_LOC_TRACEBACKS` | `CUTE_DSL_KEEP=ir-debug` writes the module with the lines of your program |
| `CUTE_DSL_JIT_CACHE_MAX_ELEMS` | no number of functions to set; `kiln cache` manages the cache on disk |
| `CUTE_DSL_LIBS` | there is no library to name |
| `CUTE_DSL_TOLERATE_M2M`, `CUTE_DSL_AUTO_M2S` | no document says what they do; Kiln has nothing of these names |
| `--warnings-filter`, `--collect-compiler-diagnostics` | Kiln warns by `warnings`: filter or record `kiln.DSLWarning` |

(`python -m kiln.base_dsl.settings` makes this page from the code that reads them, `settings.register`; change them there.)

"""

if __name__ == "__main__":
    from kiln.base_dsl.settings import markdown_table  # of the module that rooms have registered settings with

    with open("docs/settings.md", "w", encoding="utf-8") as _file:
        _file.write(_PAGE + markdown_table())
