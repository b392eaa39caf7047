"""`NvidiaTarget`: compile a module for NVIDIA GPUs; `NvidiaExecutable`: call it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._support import stack_guard
from ...base_dsl import cache, kernel_trace
from ...base_dsl.cache import Entry
from ...base_dsl.compiler import Artifacts, Compilation
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLBaseError
from ...base_dsl.guards import IS_TRUE, Guard
from ...base_dsl.options import CompileOptions
from ...base_dsl.target import Executable, Target
from ...hardware import current, driver, features
from ...hardware.architectures import Arch, Architecture
from ...hardware.limits import PORTABLE_CLUSTER, STATIC_SMEM, Needs, taken
from ...mlir import ir
from ..lowering.sites import Site
from . import codegen, copy_hints, dry_run, linking, remarks
from .codegen import Resources
from .runtime import KernelInfo, Kernels

if TYPE_CHECKING:
    from ..host.exported import Portable
    from ..host.jit import Library
    from .dry_run import DryLaunch
    from .expand import Expansion
    from .passes.kernel_outlining import LaunchFacts
    from .remarks import Remark

_WRAPPER_TYPE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclasses.dataclass
class Code:
    """Everything an executable is made of; nothing refers to this process."""

    arch: Architecture
    host: bytes
    """Object code of the host function."""
    ptx: str
    cubin: bytes
    """Empty where there was no ptxas; the driver then compiles the PTX."""
    kernels: list[KernelInfo]
    resources: dict[str, Resources]
    sites: list[Site]
    host_sites: list[Site]
    links: bool = False
    """Whether bitcode was linked, which may have shared memory of its own."""


class NvidiaExecutable(Executable):
    """Host code loaded into this process, and kernels that are loaded when first launched."""

    def __init__(self, code: Code, artifacts: Artifacts, options: CompileOptions) -> None:
        from ..host.call_context import WRAPPER
        from ..host.jit import Library
        from .launch import TABLE
        from .parts import PARTS

        self.code = code
        self.artifacts: Artifacts = artifacts
        self.timings: dict[str, float] = {}
        """Seconds each stage of the compilation took."""
        if code.kernels:
            artifacts.add("ptx", lambda: code.ptx)
            artifacts.add("cubin", lambda: code.cubin or None)
            artifacts.add(
                "sass", lambda: codegen.disassemble(code.cubin, options.nvdisasm_options) if code.cubin else None
            )
        artifacts.add("object", lambda: code.host)
        library = Library(code.host, (WRAPPER, TABLE), parts=PARTS)
        self.address: int = library.addresses[WRAPPER]
        image = code.cubin or code.ptx.encode() + b"\0"
        about = remarks.About(code.kernels, code.resources, code.cubin, artifacts)
        kernels = Kernels(
            library.addresses[TABLE], image, code.arch, code.kernels, code.sites, code.host_sites, about, library
        )
        prints = any(kernel.prints for kernel in code.kernels)
        self.kernels = kernels
        report = _reporter(kernels, code.host_sites)
        self.call: Callable[[int], None] = _caller(self.address, report, prints, library)
        if not prints:
            self.report: Callable[[int], None] | None = report

        self._about = about
        if options.remark_filter:
            remarks.report(about.remarks, options)

    @property
    def resources(self) -> Mapping[str, Resources]:
        """Registers, spills and shared memory by kernel, as ptxas reported them."""
        return self.code.resources

    def portable(self, ptx: bool = True) -> Portable:
        from .portable import portable

        return portable(self, ptx)

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on the kernels; accesses to local memory have lines if the code has line information."""
        return self._about.remarks


def _reporter(kernels: Kernels, sites: list[Site]) -> Callable[[int], None]:
    """Return a function that raises what a wrapper reported."""

    def report(record: int) -> None:
        from ..host import faults

        pending = kernels.pending.pop(threading.get_ident(), None)
        try:
            faults.report(record, sites)
        except DSLBaseError:
            if pending is None:
                raise
        if pending is not None:
            raise pending

    return report


def _caller(wrapper: int, report: Callable[[int], None], prints: bool, library: Library) -> Any:
    """Return a function that runs a wrapper on the slots at an address. As a method it would cost 0.07 us more."""
    native = _WRAPPER_TYPE(wrapper)

    def call(address: int) -> None:
        record = native(address)
        if record:
            report(record)

    def call_printing(address: int) -> None:
        sys.stdout.flush()  # kernels print past Python
        call(address)

    call.__dict__["library"] = library  # the code must outlive whoever holds this function
    return call_printing if prints else call


class NvidiaTarget(Target):
    """NVIDIA GPUs. Compiles without one."""

    name = "nvidia"

    def available(self) -> bool:
        """Return whether there is a driver and a GPU."""
        return driver.available()

    def launches(self) -> bool:
        """Return whether calls launch kernels now."""
        from . import dry_run

        return not dry_run.active()

    def device(self, number: int | None) -> contextlib.AbstractContextManager[None]:
        """While open, the primary context of a device is this thread's."""
        if number is None or not driver.several() or driver.current_device() == number:
            return contextlib.nullcontext()
        return driver.on_device(number)

    def several_devices(self) -> bool:
        return driver.several()

    def device_of(self, address: int) -> int | None:
        """Return the GPU's number; None for memory of the host."""
        return driver.device_of(address)

    def driver_function(self, name: str) -> int:
        return ctypes.cast(driver.function(name), ctypes.c_void_p).value or 0

    def device_guards(self, number: int | None) -> list[Guard]:
        """Return one where there are several devices."""
        if number is None or not driver.several():
            return []
        return [Guard(IS_TRUE, functools.partial(driver.is_current, number))]

    def current_device(self) -> int:
        """Return the device of the current context."""
        return driver.current_device() if driver.available() else 0

    def device_key(self) -> str:
        """Return the architecture of the device."""
        return current.architecture(target=self).name if driver.several() else ""

    has_dry_run = True

    def dry_run(self) -> contextlib.AbstractContextManager[list[DryLaunch]]:
        """While open, calls compile and run their host code, and launches are recorded in a list instead of made."""
        return dry_run.dry_run()

    def compile(self, module: ir.Module, entry: str, options: CompileOptions | None = None) -> NvidiaExecutable:
        """Compile the function `entry` of a module and the kernels it launches. The module is changed."""
        from ...dialects import nvgpu
        from ...dialects.definition import verify
        from ..lowering.launch_limits import check_limits
        from .passes.kernel_outlining import outline_kernels

        nvgpu.load_dialect()
        compilation = Compilation(module, entry, options)
        compilation.verify(verify)
        artifacts = Artifacts()
        source = module.operation.clone()
        artifacts.add("mlir", source.get_asm)
        artifacts.add("mlir_located", lambda: source.get_asm(enable_debug_info=True))
        arch = current.architecture(compilation.options, self)
        if (request := kernel_trace.request()) is not None:
            from ..lowering.marks import mark_kernels

            compilation.run("marks", lambda module: mark_kernels(module, request, arch))
        with compilation.stage("limits"):
            needs = check_limits(module, arch)
        with compilation.stage("kernel-outlining"):
            device, facts = outline_kernels(module)
            linking.refuse_on_host(module)
        code = Code(arch, b"", "", b"", [], {}, [], [])
        with contextlib.ExitStack() as running:
            if facts:
                devices = Compilation(device, entry, options)
                assembled = self._compile_device(compilation, devices, facts, code, artifacts, running)
                pairs = zip(facts, code.kernels, strict=True)
                counted = [own for fact, own in pairs if fact.min_blocks > 1 or fact.asks_smem]
                if any(own.static_smem or code.links for own in counted):
                    assembled()  # the host code depends on what ptxas says of static shared memory
                self._compile_host(compilation, facts, needs, code, artifacts)
                assembled()
            else:
                self._compile_host(compilation, facts, needs, code, artifacts)
        with compilation.stage("load"):
            executable = NvidiaExecutable(code, artifacts, compilation.options)
        for kind in ("ptx", "cubin", "sass"):
            if code.kernels and (code.cubin or kind == "ptx"):
                compilation.dump(kind, f"{arch.name}.{kind}", lambda kind=kind: artifacts[kind])
        executable.timings = compilation.timings
        return executable

    def _compile_device(
        self,
        whole: Compilation,
        compilation: Compilation,
        facts: list[LaunchFacts],
        code: Code,
        artifacts: Artifacts,
        running: contextlib.ExitStack,
    ) -> Callable[[], None]:
        """Compile the kernels to PTX and start ptxas, and return a function that waits for it; `running` ends ptxas."""
        options = compilation.options
        arch = code.arch
        opt = compilation.options.opt_level
        lines = options.generate_line_info or bool(options.remark_filter)
        expansion = self._compile_to_ptx(whole, compilation, facts, code, artifacts, lines)
        code.sites = expansion.sites
        code.kernels = [_info(fact, expansion, {}) for fact in facts]
        if not codegen.ptxas_version():
            code.ptx = copy_hints.without_hints(code.ptx)  # what the driver makes of them cannot be looked at
            return lambda: None
        flags = options.ptxas_options + (" -lineinfo" if lines else "")
        assembly = codegen.Assembly(code.ptx, arch, opt, flags, compilation.name)
        running.callback(assembly.end)

        def assembled() -> None:
            if code.cubin:
                return
            with compilation.stage("ptxas"):
                try:
                    try:
                        code.cubin, code.resources = assembly.result()
                    except CompilerDiagnosticError as failure:
                        # an instruction of inline PTX may be newer than those that Kiln knows
                        newer = codegen.required_ptx(failure.message, arch)
                        if newer is None:
                            raise
                        code.ptx = codegen.with_version(code.ptx, newer)
                        again = codegen.Assembly(code.ptx, arch, opt, flags, compilation.name)
                        code.cubin, code.resources = again.result()
                    if copy_hints.are_wrong(code.ptx, code.cubin):
                        code.ptx = copy_hints.without_hints(code.ptx)
                        again = codegen.Assembly(code.ptx, arch, opt, flags, compilation.name)
                        code.cubin, code.resources = again.result()
                except CompilerDiagnosticError as failure:
                    path = compilation.write_rejected(f"failed.{arch.name}.ptx", code.ptx)
                    raise CompilerDiagnosticError(failure.message, hint=f"the PTX is in {path}") from None
            code.kernels = [_info(fact, expansion, code.resources) for fact in facts]
            pairs = zip(facts, code.kernels, strict=True)
            code.resources |= {
                own.name: _with_memory(code.resources[own.name], fact, own)
                for fact, own in pairs
                if own.name in code.resources
            }
            remarks.warn_of_slow_wgmma(code.kernels, code.resources)

        return assembled

    def _compile_to_ptx(
        self,
        whole: Compilation,
        compilation: Compilation,
        facts: list[LaunchFacts],
        code: Code,
        artifacts: Artifacts,
        lines: bool,
    ) -> Expansion:
        """Lower the kernels and fill `code.ptx`; the longest kernel is compiled by LLVM while others are lowered."""
        from .lower import has_wgmma, is_alone, lower, take_in, text_of
        from .passes.kernel_outlining import apart

        options = compilation.options
        arch = code.arch
        opt = compilation.options.opt_level
        compilation.timings = whole.timings
        with compilation.stage("linking"):
            libraries = linking.resolve(compilation.module, linking.of_options(options))
        code.links = bool(libraries)
        wgmma = has_wgmma(compilation.module)
        together = lines or libraries or compilation.is_shown or not stack_guard.is_enough_for_new_threads()
        parts = [(compilation.module, facts)] if together else apart(compilation.module, facts)
        expansion = None
        texts = list[str]()
        beside: list[codegen.Beside] = []
        with codegen.tuned(wgmma), contextlib.ExitStack() as threads:
            for module, part_facts in parts[:-1]:
                part = Compilation(module, compilation.name, options)
                part.timings = whole.timings
                expansion = lower(part, arch, part_facts, lines)
                if is_alone(module, [fact.name for fact in part_facts]):
                    texts.append(text_of(part))
                    beside.append(threads.enter_context(codegen.Beside(texts[-1], arch, opt)))
            expansion = lower(compilation, arch, parts[-1][1], lines, expansion)
            if len(beside) < len(parts) - 1:
                take_in(compilation.module, parts[0][0])
            text = text_of(compilation)
            texts.append(text)
            compilation.dump("llvm", f"{arch.name}.ll", lambda: text)
            try:
                with compilation.stage("optimize"):
                    optimized = codegen.optimize(text, arch, opt, libraries)
                with compilation.stage("codegen"):
                    own = codegen.emit_ptx(optimized, arch, opt)
                    code.ptx = codegen.joined([*(thread.ptx() for thread in beside), own])
                    code.ptx = codegen.with_version(code.ptx, expansion.ptx)
                    if lines:
                        code.ptx = codegen.with_plain_files(code.ptx)
            except RuntimeError as failure:
                path = compilation.write_rejected("failed.ll", "\n".join(texts))
                raise CompilerDiagnosticError(
                    f"LLVM rejected the kernels of {compilation.name}: {failure}", hint=f"the module is in {path}"
                ) from failure
        lowered = [module.operation for module, _ in parts]
        artifacts.add("mlir_lowered", lambda: "\n".join(module.get_asm() for module in lowered))
        artifacts.add("llvm_unoptimized", lambda: "\n".join(texts))
        modules = [*(thread.module for thread in beside), optimized]
        artifacts.add("llvm", lambda: "\n".join(map(str, modules)))
        return expansion

    def _compile_host(
        self,
        compilation: Compilation,
        facts: list[LaunchFacts],
        needs: Mapping[str, Needs],
        code: Code,
        artifacts: Artifacts,
    ) -> None:
        from ...mlir import context
        from ..host import jit, runtime
        from ..host.expand import Expansion
        from ..host.lower import HANDLERS, lower
        from ..lowering.expansion import combined
        from . import launch, parts

        with compilation.stage("kernel-outlining"), context():
            _mark_launches(compilation.module, code.kernels, needs, code.arch)
            launch.make_table(compilation.module, len(facts))
        handlers = combined(HANDLERS, launch.HANDLERS)
        expansion = Expansion(
            compilation.module, handlers, "host code of the NVIDIA target", parts.TENSOR_MAPS.exports[0]
        )
        expansion.inlined.add(compilation.name)
        text = lower(compilation, expansion)
        # ptxas compiles kernels beside each other: host code then takes its time, and is not made better if nothing in it is repeated
        repeats = any(state.repeats for state in expansion.functions.values())
        level = 1 if repeats or len(facts) < 2 else 0
        try:
            with compilation.stage("host"):
                code.host = jit.emit_object(jit.optimize(text, level), level)
                jit.part_library(runtime.REPORTS)  # the host code needs it, and ptxas is not done yet
                if parts.TENSOR_MAPS.exports[0] in text:
                    jit.part_library(parts.TENSOR_MAPS)
        except RuntimeError as failure:
            path = compilation.write_rejected("failed.host.ll", text)
            raise CompilerDiagnosticError(
                f"LLVM rejected the host code of {compilation.name}: {failure}", hint=f"the module is in {path}"
            ) from failure
        artifacts.add("llvm_host", lambda: text)
        code.host_sites = expansion.sites

    def passes(self) -> dict[str, str]:
        from .pass_table import PASSES

        return {name: step.what for name, step in PASSES.items()}

    def run_passes(self, text: str, names: Sequence[str], arch: str) -> str:
        from ..lowering.pass_table import run_passes
        from .pass_table import PASSES

        return run_passes(PASSES, text, names, Arch.from_string(arch))

    def fingerprint(self, options: CompileOptions | None = None) -> str:
        """Return everything besides the module that the code depends on."""
        import llvmlite

        from ..host import jit

        options = options or CompileOptions()
        arch = current.architecture(options, self)
        ptxas = codegen.ptxas_version()
        parts = ["nvidia", arch.name, f"ptx{codegen.newest_ptx(arch)}", f"ptxas {ptxas}", f"O{options.opt_level}"]
        parts += [library.digest for library in linking.of_options(options)]
        return "/".join([*parts, *jit.host(), llvmlite.__version__])

    def serialize(self, executable: Executable) -> Entry | None:
        """Return the code of an executable."""
        assert isinstance(executable, NvidiaExecutable)
        code = executable.code
        facts = {
            "arch": code.arch.name,
            "kernels": [dataclasses.asdict(kernel) for kernel in code.kernels],
            "resources": {name: dataclasses.asdict(resources) for name, resources in code.resources.items()},
            "sites": [cache.encode_site(site) for site in code.sites],
            "host_sites": [cache.encode_site(site) for site in code.host_sites],
            "artifacts": [name for name in executable.artifacts if name not in _OWN_ARTIFACTS],
        }
        return Entry(facts, {"host": code.host, "ptx": code.ptx.encode(), "cubin": code.cubin})

    def deserialize(
        self, entry: Entry, module: ir.Module, entry_name: str, options: CompileOptions | None
    ) -> NvidiaExecutable:
        """Load host code from the cache; kernels are loaded when first launched."""
        facts = entry.facts
        data = entry.data
        code = Code(
            Arch[facts["arch"]],
            data["host"],
            data["ptx"].decode(),
            data["cubin"],
            [KernelInfo(**kernel) for kernel in facts["kernels"]],
            {
                name: Resources(**{**record, "messages": tuple(record["messages"])})
                for name, record in facts["resources"].items()
            },
            [cache.decode_site(Site, site) for site in facts["sites"]],
            [cache.decode_site(Site, site) for site in facts["host_sites"]],
        )
        artifacts = Artifacts()
        make = cache.lazy_artifacts(self, module, entry_name, options)
        for name in facts["artifacts"]:
            artifacts.add(name, lambda name=name: make(name))
        return NvidiaExecutable(code, artifacts, options or CompileOptions())


_OWN_ARTIFACTS = ("ptx", "cubin", "sass", "object")
"""Artefacts that an executable makes of its code."""


def _info(fact: LaunchFacts, expansion: Expansion, resources: dict[str, Resources]) -> KernelInfo:
    kernel = expansion.kernels[fact.name]
    reported = resources.get(fact.name, Resources())
    size = kernel.smem_bytes
    extra = taken(size) if size > STATIC_SMEM else 0
    large = expansion.arch.generation.cluster > PORTABLE_CLUSTER
    cluster = 0 if fact.cluster is None and large else 1
    for extent in fact.cluster or ():
        cluster *= extent
    static = 0 if extra else max(size, reported.smem)
    return KernelInfo(
        fact.name,
        kernel.prints,
        kernel.asserts,
        kernel.dynamic,
        fact.asks_smem,
        extra,
        static,
        cluster,
        reported.registers,
        fact.span.filename if fact.span else "",
        fact.span.line if fact.span else 0,
        [(span.filename if span else "", span.line if span else 0, hint) for span, hint in fact.unheeded],
    )


def _with_memory(reported: Resources, fact: LaunchFacts, info: KernelInfo) -> Resources:
    """Return the resources of a kernel, with its tensor memory and the shared memory of its launches as far as known."""
    dynamic = info.dynamic_smem(fact.smem)
    smem = info.static_smem + dynamic
    return dataclasses.replace(reported, smem=smem, dynamic_smem=dynamic, tmem_columns=fact.tmem_columns)


def _mark_launches(
    module: ir.Module, kernels: list[KernelInfo], needs: Mapping[str, Needs], arch: Architecture
) -> None:
    """Set the needs of its kernel on each launch."""
    from ...dialects.nvgpu.launch import DriverLaunch

    for op in DriverLaunch.all_in(module.operation):
        kernel = kernels[op.index]
        op.needs = needs.get(kernel.name, Needs()).encoded(arch.generation)
        if kernel.extra_smem and kernel.dynamic:
            op.extra_smem = kernel.extra_smem
        elif not kernel.dynamic:
            op.held_smem = kernel.static_smem
            op.least_smem = kernel.extra_smem
        if op.min_blocks is not None:
            op.static_smem = kernel.static_smem
            op.smem_per_sm = arch.generation.smem
        if arch.generation.oversized_smem:
            op.smem_optin = arch.generation.smem_optin - kernel.static_smem
        if op.preferred_cluster and not features.PREFERRED_CLUSTER.on(arch):
            op.preferred_cluster = None
        if kernel.prints or kernel.asserts:
            op.reports = True
