"""Every environment variable Kiln reads, in one typed table.

`get("CUTE_DSL_ARCH")` reads the environment at the time of the call. A value that does not fit the setting's type is
an error that names the variable, the value and what it takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from .diagnostics import DSLRuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

_begun_in = ""
with contextlib.suppress(OSError):  # it is gone
    _begun_in = os.getcwd()

ARCHITECTURES = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a",
    *(f"sm_{number}{suffix}" for number in (100, 101, 103, 107, 110, 120, 121) for suffix in ("", "a", "f")),
)  # fmt: skip
"""GPU architectures that can be asked for."""

KEEPABLE = ("ir", "ir-debug", "llvm", "ptx", "cubin", "sass", "asm", "object")
"""Artefacts `CUTE_DSL_KEEP` and `KILN_DUMP` can name; `passes` and `python` in addition for the latter."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One environment variable. `parse` turns its text into a value or raises ValueError; `takes` says what it takes."""

    name: str
    takes: str
    default: Any
    doc: str
    parse: Callable[[str], Any]

    def read(self) -> Any:
        """The value now: the environment's, or the default (called, if it is a function)."""
        text = os.environ.get(self.name)
        if text is None or not text.strip():
            return self.default() if callable(self.default) else self.default
        try:
            return self.parse(text.strip())
        except ValueError as reason:
            raise DSLRuntimeError(
                f"environment variable {self.name}={text!r}: {reason}" if str(reason) else f"{self.name}={text!r}",
                hint=f"{self.name} takes {self.takes}",
            ) from None


def _bool(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("not a truth value")


def _int(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text, 0)
        except ValueError:
            raise ValueError("not an integer") from None
        if not low <= value <= high:
            raise ValueError(f"outside {low} to {high}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if not 0 <= value < 1e9:
        raise ValueError("outside 0 to 1e9")
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return parse


def _list(*choices: str) -> Callable[[str], frozenset[str]]:
    def parse(text: str) -> frozenset[str]:
        items = {item.strip().lower() for item in text.split(",")} - {""}
        if "all" in items:
            return frozenset(choices)
        unknown = sorted(items - set(choices))
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; expected some of {', '.join(choices)}, or all")
        return frozenset(items)

    return parse


def _sanitizer_kinds(text: str) -> tuple[str, ...]:
    from .sanitizing import parse_kinds

    return parse_kinds(text)


def _text(text: str) -> str:
    return text


def _path(text: str) -> str:
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ValueError(f"there is no home directory of {text.partition('/')[0][1:] or 'this user'}")
    return path


def _report(text: str) -> str:
    """A path for the end of the process: where the program was begun, wherever it has gone since."""
    return text if text == "-" else os.path.join(_begun_in, _path(text))


def _default_cache_dir() -> str:
    """`kiln` in the user's cache directory; nothing for a user who has no home."""
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


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(256, len(os.sched_getaffinity(0)))
    return min(256, os.cpu_count() or 1)


def _under_debug() -> bool:
    return get("CUTE_DSL_DEBUG")


_BOOL = "0 or 1"
_LEVELS = "0 off, 1 all, 10 debug, 20 info, 30 warning, 40 error, 50 critical"

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("KILN_TARGET", "the name of a target", "", "Where programs run: `cpu` or `nvidia`. Unset: the GPU if there is one, else the CPU.", str.lower),
        Setting("KILN_DUMP", f"a comma list of python, passes, {', '.join(KEEPABLE)}; or all", frozenset(), "Write artefacts to `CUTE_DSL_DUMP_DIR`: the rewritten Python, the module after each pass, and what `CUTE_DSL_KEEP` can name.", _list("python", "passes", *KEEPABLE)),
        Setting("KILN_TIMING", _BOOL, False, "Log how long each stage of a compilation took.", _bool),
        Setting("KILN_CHECK_STALE", _BOOL, False, "Trace a jit function again at every call, compare with what is in use, and raise an error that shows the first difference: something was read that Kiln does not see. Slow.", _bool),
        Setting("KILN_VERIFY_PASSES", _BOOL, _under_debug, "Verify the module after every pass. On under `CUTE_DSL_DEBUG`.", _bool),
        Setting("KILN_CPU_THREADS", "1 to 256", _cores, "OS threads the CPU target may use for one launch. Unset: one for each core this process may use.", _int(1, 256)),
        Setting("KILN_CPU_SEED", "an integer of at least 0", 0, "A schedule for the CPU target: the order of threads and blocks, and when asynchronous copies land. 0: in order, and at once.", _int(0, (1 << 63) - 1)),
        Setting("KILN_CPU_TIMEOUT", "seconds", 0.0, "How long a launch on the CPU target may take; then it is stopped and says where each warp was. 0: as long as it likes.", _seconds),
        Setting("KILN_CPU_MAX_STEPS", "an integer of at least 0", 0, "How many steps a launch on the CPU target may take; then it is stopped and says where each warp was. A thread takes a step when it goes on after a wait and in each iteration of a loop. 0: as many as it likes.", _int(0, (1 << 62) - 1)),
        Setting("KILN_SANITIZE", "a comma list of race, memory, sync, numeric, banks; or all for all but the last, or 1 for the first three", (), "What the sanitizer looks for; `banks` counts bank conflicts of shared memory. Programs then run on the CPU target, in an instrumented build.", _sanitizer_kinds),
        Setting("KILN_SANITIZE_REPORT", "a path", "", "Findings of the sanitizer do not raise; they are written there as JSON when the process ends.", _report),
        Setting("KILN_BANK_CONFLICTS_REPORT", "a path, or `-`", "", "Where bank conflicts counted under `KILN_SANITIZE=banks` go when the process ends: a table on standard output for `-`, else a JSON file.", _report),
        Setting("KILN_CPU_OPT", "0 to 3", 2, "LLVM optimization level of the CPU target where the program does not choose one.", _int(0, 3)),
        Setting("KILN_COMPILE_PROCESSES", "0 to 256", _cores, "Processes that compile at a time while tuning; 0 or 1: this process compiles all. Unset: one for each core this process may use.", _int(0, 256)),
        Setting("KILN_PTXAS", "a path", "", "The ptxas to call. Unset: that of the wheel `nvidia-cuda-nvcc`, of `CUDA_HOME`, or on `PATH`.", _path),
        Setting("KILN_NVDISASM", "a path", "", "The nvdisasm to call. Unset: that of the wheel `nvidia-cuda-nvdisasm`, of `CUDA_HOME`, or on `PATH`.", _path),
        Setting("CUTE_DSL_ARCH", f"one of {', '.join(ARCHITECTURES)}", "", "GPU architecture to compile for. Unset: that of the GPU.", _choice(*ARCHITECTURES)),
        Setting("CUTE_DSL_KEEP", f"a comma list of {', '.join(KEEPABLE)}; or all", frozenset(), "Artefacts to save as files and to keep on the compiled function.", _list(*KEEPABLE)),
        Setting("CUTE_DSL_KEEP_IR", _BOOL, False, "As `CUTE_DSL_KEEP=ir`.", _bool),
        Setting("CUTE_DSL_KEEP_PTX", _BOOL, False, "As `CUTE_DSL_KEEP=ptx`.", _bool),
        Setting("CUTE_DSL_KEEP_CUBIN", _BOOL, False, "As `CUTE_DSL_KEEP=cubin`.", _bool),
        Setting("CUTE_DSL_KEEP_SASS", _BOOL, False, "As `CUTE_DSL_KEEP=sass`.", _bool),
        Setting("CUTE_DSL_DUMP_DIR", "a path", os.getcwd, "Where artefacts are written. Unset: the current directory; for what LLVM or ptxas rejected, a new temporary folder.", _path),
        Setting("CUTE_DSL_PRINT_IR", _BOOL, False, "Print the traced module to standard output.", _bool),
        Setting("CUTE_DSL_LINEINFO", _BOOL, _under_debug, "Put source lines into compiled code. On under `CUTE_DSL_DEBUG`.", _bool),
        Setting("CUTE_DSL_DEBUG", _BOOL, False, "Raise the defaults: line information, whole stack traces, optimization warnings, verification of every pass, full validation of arguments.", _bool),
        Setting("CUTE_DSL_FILTER_STACKTRACE", _BOOL, lambda: not _under_debug(), "Leave Kiln's own frames out of stack traces. Off under `CUTE_DSL_DEBUG`.", _bool),
        Setting("CUTE_DSL_LOG_TO_CONSOLE", _BOOL, False, "Log to standard error.", _bool),
        Setting("CUTE_DSL_LOG_TO_FILE", _BOOL, False, "Log to a file `kiln-<process>.log` in `CUTE_DSL_DUMP_DIR`.", _bool),
        Setting("CUTE_DSL_LOG_LEVEL", _LEVELS, 1, "How much is logged: messages of this level and above.", _int(0, 50)),
        Setting("CUTE_DSL_CACHE_DIR", "a path", _default_cache_dir, "Where compiled code is cached. Unset: `kiln` in `XDG_CACHE_HOME` or `~/.cache`. A directory that others could write to, itself or by way of those it lies in, is not used: Kiln says so, and caches for the life of the process. Writable by a group is fine where the group is the user's own (same name and nobody else in it); so is lying in a directory with the sticky bit, such as `/tmp`.", _path),
        Setting("CUTE_DSL_DISABLE_FILE_CACHING", _BOOL, False, "Keep compiled code in memory only.", _bool),
        Setting("CUTE_DSL_ENABLE_TVM_FFI", _BOOL, False, "Compile every function as with `--enable-tvm-ffi`.", _bool),
        Setting("CUTE_DSL_COMPILER_OPT", "compile options", "", "Options applied to every compilation, before those of the call.", _text),
        Setting("CUTE_DSL_LIB_PATH", "a path", "", "Libraries for building C++ programs against exported code.", _path),
        Setting("CUTE_DSL_INCLUDE_PATH", "a path", "", "Headers for building C++ programs against exported code.", _path),
        Setting("CUTE_DSL_LOG_AUTOTUNE", _BOOL, False, "Log what the autotuner tries.", _bool),
    )
}  # fmt: skip
"""All settings by name."""


def get(name: str) -> Any:
    """The value of a setting now."""
    return SETTINGS[name].read()


def is_set(name: str) -> bool:
    """Whether the environment gives a setting a value."""
    return bool(os.environ.get(name, "").strip())


def kept() -> frozenset[str]:
    """The artefacts the environment asks for, from `CUTE_DSL_KEEP` and the variables for one artefact each."""
    single = {kind for kind in ("ir", "ptx", "cubin", "sass") if get(f"CUTE_DSL_KEEP_{kind.upper()}")}
    return get("CUTE_DSL_KEEP") | single


def dumped() -> frozenset[str]:
    """The artefacts to write as files: `KILN_DUMP` and everything that is kept."""
    return get("KILN_DUMP") | kept()


def markdown_table() -> str:
    """The table of `docs/settings.md`."""
    lines = ["| variable | takes | default | effect |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = setting.default
        if callable(default):
            default = "see effect"
        elif isinstance(default, bool):
            default = int(default)
        elif default in ("", frozenset()):
            default = "unset"
        lines.append(f"| `{setting.name}` | {setting.takes} | {default} | {setting.doc} |")
    return "\n".join(lines) + "\n"


_PAGE = """# Settings

Kiln reads these environment variables, each at the time it is needed. Made from `src/kiln/base_dsl/settings.py` by
`python -m kiln.base_dsl.settings`; change them there.

"""

if __name__ == "__main__":
    with open("docs/settings.md", "w", encoding="utf-8") as _file:
        _file.write(_PAGE + markdown_table())
