"""`CpuTarget`: compile a module for this machine; `CpuExecutable`: call it."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...base_dsl import cache, kernel_trace, sanitizing, settings
from ...base_dsl.cache import Entry
from ...base_dsl.compiler import Artifacts, Compilation
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLWarning
from ...base_dsl.guards import Guard
from ...base_dsl.options import CompileOptions
from ...base_dsl.target import Executable, Target
from ...dialects import cute
from ...dialects.definition import verify
from ...hardware import current
from ...hardware.architectures import Arch
from ...mlir import find, ir
from ..host import faults, signals
from ..lowering.sites import Site
from .faults import explain
from .runtime import launch_settings

if TYPE_CHECKING:
    from ..host.exported import Portable
    from ..host.jit import Library
    from .access_counter import AccessCounter
    from .event_recorder import EventRecorder
    from .sanitizer.report_facts import ReportFacts

CHECKED_OPT = 0
"""The optimization level of builds with default checks, which run once or a few times."""
_WRAPPER_TYPE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class CpuExecutable(Executable):
    """Object code loaded into this process."""

    def __init__(
        self,
        data: bytes,
        sites: Sequence[Site],
        artifacts: Artifacts,
        sanitizer: ReportFacts | None = None,
        counter: AccessCounter | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        from ..host.call_context import WRAPPER
        from ..host.jit import Library
        from .runtime.parts import LAUNCH, PARTS

        self.object = data
        self.timings: dict[str, float] = {}
        """Seconds each stage of the compilation took."""
        self.sites: tuple[Site, ...] = tuple(sites)
        self.artifacts: Artifacts = artifacts
        self.sanitizer = sanitizer
        self.instrumented: bool = any(each is not None for each in (sanitizer, counter, recorder))
        others: list[Library] = []
        exports = [WRAPPER]
        if sanitizer is not None:
            from .sanitizer.library import library as detector

            others.append(detector())
        if counter is not None:
            from .access_counter import COUNTERS
            from .access_counter import library as counting

            others.append(counting())
            exports.append(COUNTERS)
        if recorder is not None:
            from .event_recorder import library as recording

            others.append(recording())
        library = Library(data, tuple(exports), others=tuple(others), parts=PARTS)
        self.address: int = library.addresses[WRAPPER]
        self.call: Any = _caller(self.address, self.sites, library)
        if counter is not None:
            from .access_counter import COUNTERS, counted

            self.call = counted(self.call, library.addresses[COUNTERS], counter.places)
        if recorder is not None:
            from .event_recorder import recorded

            self.call = recorded(self.call, recorder.sites)
        if sanitizer is not None:
            from .sanitizer.finding import watched

            self.call = watched(self.call, sanitizer)
        if not self.instrumented:  # calls may be made by native code
            self.report: Callable[[int], None] | None = functools.partial(_report, self.sites)
        if LAUNCH in library.parts:
            self.guards: Sequence[Guard] = launch_settings.guards()
        signals.install()  # others may have come before it

    def portable(self, ptx: bool = True) -> Portable | None:
        from ..host import elf, jit
        from ..host.call_context import WRAPPER
        from ..host.exported import Portable
        from ..host.object_code import undefined_symbols
        from .runtime.parts import PARTS

        def code(processor: Any, suffix: str) -> elf.Object:
            opt = settings.get("KILN_CPU_OPT")
            optimized = jit.optimize(self.artifacts["llvm_unoptimized"], opt, processor)
            return elf.renamed(elf.read(jit.emit_object(optimized, opt, processor)), (WRAPPER,), suffix)

        prints = "kiln_cpu_stream" in undefined_symbols(self.object)
        return None if self.instrumented else Portable("cpu", code, PARTS, self.sites, prints)


def _caller(wrapper: int, sites: tuple[Site, ...], library: Library) -> Any:
    """Return a function that runs a wrapper on the slots at an address. As a method it would cost 0.07 us more."""
    native = _WRAPPER_TYPE(wrapper)

    def call(address: int) -> None:
        launch_settings.follow()
        record = native(address)
        if record:
            faults.report(record, sites, explain)

    call.__dict__["library"] = library  # the code must outlive whoever holds this function
    return call


def _report(sites: tuple[Site, ...], record: int) -> None:
    faults.report(record, sites, explain)


class CpuTarget(Target):
    """This machine."""

    name = "cpu"
    on_host = True

    def compile(self, module: ir.Module, entry: str, options: CompileOptions | None = None) -> CpuExecutable:
        """Compile the function `entry` of a module to native code. The module is changed."""
        from ..host import jit
        from .lower import lower
        from .runtime.parts import PARTS

        cute.load_dialect()
        compilation = Compilation(module, entry, options)
        compilation.verify(verify)
        artifacts = Artifacts()
        source = cache.clone_module(module)  # 0.5 us per operation; rendering it costs 10
        artifacts.add("mlir", source.operation.get_asm)
        if (request := kernel_trace.request()) is not None:
            from ..lowering.marks import mark_kernels

            arch = current.architecture(compilation.options, self)
            compilation.run("marks", lambda module: mark_kernels(module, request, arch, on_host=True))
        text, expansion = lower(compilation, current.architecture(compilation.options, self), sanitizing.kinds())
        artifacts.add("mlir_lowered", module.operation.get_asm)
        compilation.dump("llvm", "ll", lambda: text)
        _warn_of_kept(entry)
        opt = _opt_level(compilation.options)
        jit.begin_parts(PARTS, text)
        try:
            with compilation.stage("optimize"):
                optimized = jit.optimize(text, opt)
            with compilation.stage("codegen"):
                data = jit.emit_object(optimized, opt)
            artifacts.add("llvm", optimized.__str__)
            artifacts.add("llvm_unoptimized", lambda: text)
            artifacts.add("asm", lambda: jit.target_machine(opt).emit_assembly(optimized))
            artifacts.add("object", lambda: data)
            compilation.dump("asm", "s", lambda: artifacts["asm"])
            compilation.dump("object", "o", lambda: data)
            with compilation.stage("load"):
                executable = CpuExecutable(
                    data, expansion.sites, artifacts, expansion.sanitizer, expansion.counter, expansion.recorder
                )
        except RuntimeError as failure:
            path = compilation.write_rejected("failed.ll", text)
            raise CompilerDiagnosticError(
                f"LLVM rejected the code of {entry}: {failure}", hint=f"the module is in {path}"
            ) from failure
        executable.timings = compilation.timings
        self._check(executable, source, entry, options)
        return executable

    def _check(self, executable: CpuExecutable, source: ir.Module, entry: str, options: CompileOptions | None) -> None:
        """Let some calls of an executable run a build that checks bounds and unset shared memory."""
        chosen = options or CompileOptions()
        mode = chosen.checks if chosen.is_set("checks") or sanitizing.checks() else "never"
        if kernel_trace.request() is not None:
            mode = "never"  # a checked build would make no marks
        if mode == "never" or executable.instrumented or not find(source.operation, (cute.Launch.OPERATION_NAME,)):
            return
        from . import checks
        from .sanitizer.report_facts import ReportFacts

        def checked_executable() -> CpuExecutable:
            from ..host import jit
            from .lower import lower

            compilation = Compilation(cache.clone_module(source), entry, options)
            text, expansion = lower(compilation, current.architecture(compilation.options, self), (sanitizing.BOUNDS,))
            data = jit.emit_object(jit.optimize(text, CHECKED_OPT), CHECKED_OPT)
            return CpuExecutable(data, expansion.sites, Artifacts(), expansion.sanitizer)

        def loaded(entry: Entry) -> CpuExecutable:
            sanitizer = ReportFacts.decoded((sanitizing.BOUNDS,), entry.facts["sanitizer"])
            return CpuExecutable(entry.data["object"], _sites(entry), Artifacts(), sanitizer)

        def entry_of(checked: CpuExecutable) -> Entry:
            assert checked.sanitizer is not None
            facts = {
                "sites": [cache.encode_site(site) for site in checked.sites],
                "sanitizer": checked.sanitizer.encoded(),
            }
            return Entry(facts, {"object": checked.object})

        def build() -> Any:
            name = functools.partial(cache.key, self, source, entry, options, "checked")
            checked = cache.load_or_build(name, loaded, checked_executable, entry_of)
            assert checked.sanitizer is not None
            checked.sanitizer.strict = always
            checked.sanitizer.silent = mode == "off"
            facts.append(checked.sanitizer)
            return checked.call

        always = mode == "always"
        facts = list[ReportFacts]()
        goes_on = lambda: always or any(fact.outside for fact in facts)
        checks.install(executable, build, checks.arrays(source, entry), goes_on)

    def launch_guards(self) -> Sequence[Guard]:
        """Return guards that hold while the settings of launches are unchanged."""
        return launch_settings.guards()

    def passes(self) -> dict[str, str]:
        from .pass_table import PASSES

        return {name: step.what for name, step in PASSES.items()}

    def run_passes(self, text: str, names: Sequence[str], arch: str) -> str:
        from ..lowering.pass_table import run_passes
        from .pass_table import PASSES

        return run_passes(PASSES, text, names, Arch.from_string(arch))

    def fingerprint(self, options: CompileOptions | None = None) -> str:
        """Return everything besides the module that the machine code depends on."""
        import llvmlite

        from ..host import jit

        level = _opt_level(options or CompileOptions())
        sanitized = [f"sanitize={','.join(sanitizing.kinds())}"] if sanitizing.kinds() else []
        return "/".join(["cpu", *jit.host(), llvmlite.__version__, f"O{level}", *sanitized])

    def serialize(self, executable: Executable) -> Entry | None:
        """Return object code and the places that can fail; instrumented code is not cached."""
        assert isinstance(executable, CpuExecutable)
        if executable.instrumented:
            return None
        facts = {
            "sites": [cache.encode_site(site) for site in executable.sites],
            "artifacts": list(executable.artifacts),
        }
        return Entry(facts, {"object": executable.object})

    def deserialize(
        self, entry: Entry, module: ir.Module, entry_name: str, options: CompileOptions | None
    ) -> CpuExecutable:
        """Load object code from the cache."""
        artifacts = Artifacts()
        make = cache.lazy_artifacts(self, module, entry_name, options)
        for name in entry.facts["artifacts"]:
            artifacts.add(name, lambda name=name: make(name))
        executable = CpuExecutable(entry.data["object"], _sites(entry), artifacts)
        self._check(executable, module, entry_name, options)
        return executable


_MADE = frozenset(("ir", "ir-debug", "llvm", "asm", "object", "python", "passes"))
"""What `CUTE_DSL_KEEP` can name and there is on this target."""


def _warn_of_kept(entry: str) -> None:
    """Warn of artefacts that the environment asks for and that this target does not make."""
    kept = settings.kept()
    missing = sorted(kept - _MADE)
    if missing and not kept.issuperset(settings.KEEPABLE):  # `all` are all that there are
        text = (
            f"{entry} was compiled for the CPU target, which makes no {' or '.join(missing)}: no such file is written"
        )
        hint = 'help: compile for a GPU, which need not be here: cute.compile(..., target="nvidia"), or `kiln inspect`'
        warnings.warn(f"{text}\n{hint}", DSLWarning, stacklevel=2)


def _sites(entry: Entry) -> list[Site]:
    """Return the places that can fail of a cached executable."""
    return [cache.decode_site(Site, facts) for facts in entry.facts["sites"]]


def _opt_level(options: CompileOptions) -> int:
    """Return the optimization level that the program chose, else that of the setting."""
    return options.opt_level if options.is_set("opt_level") else settings.get("KILN_CPU_OPT")
