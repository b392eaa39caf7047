"""LLVM IR text of kernels to PTX (LLVM), PTX to a cubin (ptxas), a cubin to SASS (nvdisasm)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from ctypes import c_char_p, string_at
from typing import Any

from ..._support import file_names, fork_safe, one_import
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLSubprocessCallError
from ...base_dsl.dsl import others_may_compile
from ...hardware import driver, source_paths, toolchain
from ...hardware.architectures import Architecture
from ...llvm import binding as llvm
from ...llvm import unlocked
from ..lowering.pass_managers import free

TRIPLE = "nvptx64-nvidia-cuda"
_lock = fork_safe.wait_for(fork_safe.rlock())


# --- LLVM ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Shared memory has addresses of 32 bits: half the address arithmetic, fewer registers.
    llvm.set_option("kiln", "--nvptx-short-ptr")
    # CodeGenPrepare looks again at the blocks that it changed, not at whole functions: the same code, in a tenth of the time
    # where there are many blocks.
    llvm.set_option("kiln", "--cgpp-huge-func=0")


_TUNING = (
    # how far back from a write it is looked for another that it makes useless: most writes are copies to shared memory
    ("dse-memoryssa-walklimit", "10", "90"),
)
"""LLVM options for device code, each with its default, which code of the CPU target keeps: options are per process."""
_TUNING_OF_WGMMA = (
    # What is computed before a main loop stays there. Between the loop and the wait behind it, ptxas would mix it with
    # what reads the accumulators, take these to be read in flight, and serialize the WGMMAs (C7514).
    ("instcombine-code-sinking", "0", "1"),
)
"""LLVM options for kernels with WGMMA, each with its default."""


@contextlib.contextmanager
def tuned(wgmma: bool) -> Iterator[None]:
    """While open, set the LLVM options for device code with or without WGMMA."""
    options = (*_TUNING, *(_TUNING_OF_WGMMA if wgmma else ()))
    with _lock:
        for name, value, _ in options:
            llvm.set_option("kiln", f"--{name}={value}")
        try:
            yield
        finally:
            for name, _, default in options:
                llvm.set_option("kiln", f"--{name}={default}")


@functools.lru_cache(maxsize=16)
def _machine(arch: Architecture, version: int, opt: int, _thread: int, short: bool) -> llvm.TargetMachine:
    """Return a target machine; one machine serves one thread at a time. `short`: shared memory has addresses of 32 bits."""
    _initialize()
    if not short:
        llvm.set_option("kiln", "--nvptx-short-ptr=false")
    try:
        # 3 numbers values by a slower method, and gives the same code
        return llvm.Target.from_triple(TRIPLE).create_target_machine(
            cpu=_llvm_name(arch), features=f"+ptx{min(version, _LLVM_PTX)}", opt=2 if opt else 0
        )
    finally:
        if not short:
            llvm.set_option("kiln", "--nvptx-short-ptr=true")


_SHORT = "-p3:32:32-"
"""What the data layout of a module says where addresses of shared memory have 32 bits."""


_LLVM_PTX = 90
"""The newest PTX version that LLVM writes."""


def _llvm_name(arch: Architecture) -> str:
    """Return the architecture that LLVM compiles for: it knows no sm_107, whose code is that of sm_103."""
    return f"sm_103{arch.suffix}" if arch.number == 107 else arch.name


def _with_head(ptx: str, arch: Architecture, version: int) -> str:
    """Return PTX with the version and the architecture that LLVM did not know."""
    if version > _LLVM_PTX:
        ptx = ptx.replace(f".version {_LLVM_PTX / 10}", f".version {version / 10}", 1)
    return ptx.replace(f".target {_llvm_name(arch)}", f".target {arch.name}", 1)


def optimize(
    text: str, arch: Architecture, opt: int, libraries: Sequence[bytes] = (), thread: int = 0
) -> llvm.ModuleRef:
    """Parse, link with bitcode libraries, verify and optimize a module in its own context.

    All modules get the same passes. Raises RuntimeError with LLVM's message.
    """
    module = _parse(text)
    others = [llvm.parse_bitcode(library, module._context) for library in libraries]
    # LLVM 22 ends the process over a function that takes a structure in memory where addresses of shared memory are short
    short = not any(map(_passes_in_memory, others))
    machine = _machine(arch, newest_ptx(arch), opt, thread, short)
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    for other in others:
        _link(module, other, str(machine.target_data))
    module.verify()
    # O3 gives the SASS of O2 for longer. Loops of constant length are unrolled as LLVM sees fit; the lowering has
    # marked the others, which ptxas unrolls better.
    tuning = llvm.create_pipeline_tuning_options(speed_level=min(opt, 2))
    tuning.loop_unrolling = opt > 1
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_interleaving = False
    if opt:
        # Programs compute what they turn out not to need, of layouts above all. Without this pass LLVM first looks
        # for what was
        # computed before: it would take such a value, at the start of a kernel, for equal ones of the roles that
        # warps have,
        # and keep it in a register from there on.
        dead_code = llvm.create_new_module_pass_manager()
        dead_code.add_dead_code_elimination_pass()
        _run(dead_code, module, llvm.create_pass_builder(machine, tuning))
    builder = llvm.create_pass_builder(machine, tuning)  # for one run: what observes a run lives no longer
    _run(builder.getModulePassManager(), module, builder)
    return module


def _run(passes: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    free(passes)


def _parse(text: str) -> llvm.ModuleRef:
    own = llvm.create_context()
    with llvm.ffi.OutputString() as said:
        module = llvm.ModuleRef(unlocked("LLVMPY_ParseAssembly")(own, c_char_p(text.encode()), said), own)
        module._owned = True  # its context frees it: the garbage collector may end that one first
        if said:
            raise RuntimeError(f"LLVM IR parsing error\n{said}")
    return module


def drop_unused(module: llvm.ModuleRef) -> None:
    """Drop the functions of a module that no visible one needs, and debug information that nothing refers to then."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_debug_info_pass()
    _run(passes, module, llvm.create_pass_builder(_any_machine(), llvm.create_pipeline_tuning_options()))


@functools.cache
def _any_machine() -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(TRIPLE).create_target_machine()


def _passes_in_memory(module: llvm.ModuleRef) -> bool:
    """Return whether a function of a module takes a structure in memory."""
    defined = (function for function in module.functions if not function.is_declaration)
    return any(
        attribute.startswith(b"byval")
        for function in defined
        for argument in function.arguments
        for attribute in argument.attributes
    )


def _link(module: llvm.ModuleRef, other: llvm.ModuleRef, data_layout: str) -> None:
    keep = {function.name for function in module.functions if not function.is_declaration}
    other.triple = TRIPLE
    other.data_layout = data_layout
    module.link_in(other)
    for function in module.functions:
        if function.name not in keep and not function.is_declaration:
            function.linkage = "internal"
    for variable in module.global_variables:
        if variable.name.startswith("__") and not variable.is_declaration:
            variable.linkage = "internal"


def emit_ptx(module: llvm.ModuleRef, arch: Architecture, opt: int, thread: int = 0) -> str:
    """Return the PTX of an optimized module."""
    version = newest_ptx(arch)
    machine = _machine(arch, version, opt, thread, _SHORT in module.data_layout)
    with llvm.ffi.OutputString() as said:
        buffer = unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 0, said)
        if not buffer:
            raise RuntimeError(str(said))
    try:
        start = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer)
        size = llvm.ffi.lib.LLVMPY_GetBufferSize(buffer)
        return _with_head(string_at(start, size).decode(), arch, version)
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def with_plain_files(ptx: str) -> str:
    """Return PTX with file names as ptxas takes them: LLVM escapes characters, and ptxas knows no escapes."""

    def unescaped(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPED.get(code, code)

    def renamed(match: re.Match[str]) -> str:
        path = _ESCAPE.sub(unescaped, match[2].encode(errors="surrogateescape")).decode(errors="surrogateescape")
        return f'{match[1]}"{source_paths.encoded(file_names.from_utf8(path))}"'

    return _FILE.sub(renamed, ptx)


# --- kernels beside each other ---------------------------------------------------------------------------------------


_PATIENCE = 2e-4
"""The GIL switch interval, in seconds, while LLVM compiles in a second thread; Python's 5 ms would cost 20 to 50 ms."""


class Beside:
    """A thread that compiles a module to PTX; leaving the `with` block waits for it."""

    def __init__(self, text: str, arch: Architecture, opt: int) -> None:
        self._text = text
        self._arch = arch
        self._opt = opt
        _machine(arch, newest_ptx(arch), opt, 1, True)  # one thread makes machines
        self._thread = threading.Thread(target=one_import.waited_for(self._run))
        self._failure: BaseException | None = None
        self._ptx = ""

    def _run(self) -> None:
        try:
            self.module: Any = optimize(self._text, self._arch, self._opt, thread=1)
            self._ptx = emit_ptx(self.module, self._arch, self._opt, thread=1)
        except BaseException as failure:  # the thread that waits raises it
            self._failure = failure

    def __enter__(self) -> Beside:
        self._interval = sys.getswitchinterval()
        with contextlib.suppress(RuntimeError):  # no more threads: whoever asks for the PTX makes it
            self._thread.start()
            sys.setswitchinterval(min(self._interval, _PATIENCE))
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        sys.setswitchinterval(self._interval)

    def ptx(self) -> str:
        """Wait for the PTX and return it. Raises RuntimeError with LLVM's message."""
        if self._thread.ident is None:
            self._run()
        else:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._ptx


def joined(codes: Sequence[str]) -> str:
    """Return several modules of PTX as one."""
    first, *others = codes
    said = set(_head(first).splitlines() if others else ())
    for code in others:
        head = _head(code)
        lines = [line for line in head.splitlines() if line not in said and not line.lstrip().startswith("//")]
        first += "\n".join([*lines, code[len(head) :]])
    return first


def _head(ptx: str) -> str:
    """Return what comes before the first kernel."""
    return ptx[: ptx.index(".visible .entry")]


# --- ptxas -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources of a kernel, per thread or block; all but dynamic shared memory and tensor memory as ptxas reports them."""

    registers: int = 0
    spill_stores: int = 0
    """Bytes written to local memory because registers ran out."""
    spill_loads: int = 0
    stack: int = 0
    """Bytes of local memory."""
    smem: int = 0
    """Bytes of shared memory of a block: those the kernel allocates, and those that launches are known to add."""
    constant: int = 0
    barriers: int = 0
    messages: tuple[str, ...] = ()
    """Messages of ptxas about serialized WGMMAs and ignored `setmaxnreg`."""
    dynamic_smem: int = 0
    """Bytes of `smem` that are dynamic: a launch gives them to the block."""
    tmem_columns: int = 0
    """Columns of tensor memory that the largest allocation takes, as far as known."""

    @property
    def static_smem(self) -> int:
        """Bytes of `smem` that are static."""
        return self.smem - self.dynamic_smem


_WHERE_PTXAS_IS = ("KILN_PTXAS", "CUDA_HOME", "CUDA_PATH", "PATH")


def _ptxas() -> toolchain.Tool | None:
    return _ptxas_in(*map(os.environ.get, _WHERE_PTXAS_IS))


@functools.lru_cache(maxsize=4)
def _ptxas_in(*_environment: str | None) -> toolchain.Tool | None:
    return toolchain.find("ptxas")


def ptxas_version() -> str | None:
    """Return the CUDA release of ptxas, or None where there is none: the driver then compiles the PTX."""
    tool = _ptxas()
    return _version(tool) if tool else None


@functools.lru_cache(maxsize=4)
def _version(tool: toolchain.Tool) -> str | None:
    return tool.version()


def newest_ptx(arch: Architecture) -> int:
    """Return the PTX version to emit, which ptxas takes or, without ptxas, the driver."""
    return ptx_version(arch, ptxas_version() or driver.cuda_version())


def supported_ptx(arch: Architecture) -> int:
    """Return the newest PTX version that ptxas takes or, without ptxas, the driver."""
    cuda = ptxas_version() or driver.cuda_version()
    return max(toolchain.newest_ptx_of(cuda) if cuda else _NEWEST_PTX, ptx_version(arch, cuda))


def with_version(ptx: str, version: int) -> str:
    """Return PTX of at least a version, which inline PTX in it needs."""
    directive = _VERSION.search(ptx)
    if directive is None or int(directive[1]) * 10 + int(directive[2]) >= version:
        return ptx
    return f"{ptx[: directive.start()]}.version {version / 10}{ptx[directive.end() :]}"


def required_ptx(message: str, arch: Architecture) -> int | None:
    """Return the PTX version that ptxas asks for where it rejects code, if it takes that version itself."""
    versions = [int(major) * 10 + int(minor) for major, minor in _REQUIRES.findall(message)]
    newest = max(versions, default=0)
    return newest if newest and newest <= supported_ptx(arch) else None


_REQUIRES = re.compile(r"requires PTX ISA \.version (\d+)\.(\d+) or later")
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)", re.MULTILINE)
_NEWEST_PTX = 88
"""The PTX version that is written unless an architecture or a feature of the module needs a newer one."""
_FAMILY_PTX = 88
"""The first PTX version with architectures of a family, such as sm_100f."""


def ptx_version(arch: Architecture, cuda: str | None) -> int:
    """Return the PTX version to emit for a CUDA release, 88 for 8.8."""
    supported = toolchain.newest_ptx_of(cuda) if cuda else _NEWEST_PTX
    first = max(arch.generation.ptx, _FAMILY_PTX if arch.suffix == "f" else 0)
    return max(min(_NEWEST_PTX, supported), first)


_SPLITS = 13
"""The first CUDA release whose ptxas compiles kernels in parallel."""
_TMPDIR = "TMPDIR names a directory that can be written to and has room"


class Assembly:
    """A run of ptxas, which starts when this is made, while other code is compiled.

    Its owner calls `result` or `end`.
    """

    def __init__(self, ptx: str, arch: Architecture, opt: int, options: str = "", name: str = "module") -> None:
        tool = _ptxas()
        if tool is None:
            raise DSLSubprocessCallError("ptxas was not found", hint="pip install nvidia-cuda-nvcc, or set CUDA_HOME")
        self._ptx = ptx
        self._arch = arch
        self._name = name
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="kiln-")
        except OSError as reason:
            raise DSLSubprocessCallError(f"ptxas has no place for its files: {reason}", hint=_TMPDIR) from None
        source, self._target = (os.path.join(self._folder.name, f"module.{kind}") for kind in ("ptx", "cubin"))
        try:
            try:
                with open(source, "w") as file:
                    file.write(ptx)
            except OSError as reason:
                raise DSLSubprocessCallError(f"ptxas has no place for its files: {reason}", hint=_TMPDIR) from None
            command = [str(tool.path), "-v", f"-O{opt}", f"--gpu-name={arch.name}"]
            if int((_version(tool) or "0").partition(".")[0]) >= _SPLITS:
                command.append(f"--split-compile={ptx.count('.entry ')}")
            command += [*shlex.split(options), source, "-o", self._target]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except BaseException:
            self._folder.cleanup()
            raise

    def result(self) -> tuple[bytes, dict[str, Resources]]:
        """Return the cubin of the PTX and the resources of its kernels, when ptxas is done."""
        try:
            with others_may_compile():
                said = self._process.communicate()[0]
            if self._process.returncode:
                raise CompilerDiagnosticError(
                    _ptxas_message(said, self._ptx, self._name, self._arch),
                    hint="the PTX is in __ptx__, or kept with CUTE_DSL_KEEP=ptx",
                )
            with open(self._target, "rb") as file:
                return file.read(), parse_resources(said, self._ptx)
        finally:
            self.end()

    def end(self) -> None:
        """End ptxas, if it still runs, and remove its files."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


def _ptxas_message(said: str, ptx: str, name: str, arch: Architecture) -> str:
    """Return the message of ptxas, with the lines of PTX it names."""
    lines = [line for line in said.splitlines() if "error" in line or "fatal" in line] or said.splitlines()
    source = ptx.splitlines()
    shown: list[str] = []
    for line in lines[:5]:
        shown.append(line.strip())
        match = re.search(r"line (\d+)", line)
        if match and 0 < int(match.group(1)) <= len(source):
            shown.append(f"    {source[int(match.group(1)) - 1].strip()}")
    return f"ptxas rejected the code of {name} for {arch.name}:\n" + "\n".join(shown)


_MESSAGE = re.compile(r"\((C75\d\d)\) (?:Potential Performance Loss: )?(.*?)\.?$")


def _messages(said: str, ptx: str) -> dict[str, tuple[str, ...]]:
    """Return the messages of ptxas about each kernel."""
    by_kernel: dict[str, dict[str, None]] = {}
    for line in said.splitlines():
        if match := _MESSAGE.search(line):
            code, text = match.groups()
            named = re.search(r" (?:in|for) (?:the )?function '([^']+)'", text)
            text = re.sub(r" (?:in|for) (?:the )?function '[^']+'(?: in line \d+)?|in around line \d+ ", "", text)
            for name in [named.group(1)] if named else _kernels_with(ptx, "setmaxnreg"):
                by_kernel.setdefault(name, {})[f"{code}: {text}"] = None
    return {name: tuple(texts) for name, texts in by_kernel.items()}


def _kernels_with(ptx: str, word: str) -> list[str]:
    """Return the kernels whose code has a word."""
    return [body.split("(", 1)[0].strip() for body in ptx.split(".entry ")[1:] if word in body]


def parse_resources(said: str, ptx: str = "") -> dict[str, Resources]:
    """Return the resources of each kernel in what `ptxas -v` printed."""
    messages = _messages(said, ptx)
    by_kernel: dict[str, Resources] = {}
    name = ""
    for line in said.splitlines():
        if match := re.search(r"Compiling entry function '([^']+)'", line):
            name = match.group(1)
            by_kernel[name] = Resources(messages=messages.get(name, ()))
        elif name and (
            match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        ):
            stack, stores, loads = map(int, match.groups())
            by_kernel[name] = dataclasses.replace(by_kernel[name], stack=stack, spill_stores=stores, spill_loads=loads)
        elif name and (match := re.search(r"Used (\d+) registers", line)):

            def number(pattern: str, text: str = line) -> int:
                return sum(int(n) for n in re.findall(pattern, text))

            by_kernel[name] = dataclasses.replace(
                by_kernel[name],
                registers=int(match.group(1)),
                smem=number(r"(\d+) bytes smem"),
                constant=number(r"(\d+) bytes cmem"),
                barriers=number(r"used (\d+) barriers"),
            )
    return by_kernel


# --- nvdisasm --------------------------------------------------------------------------------------------------------


def disassemble(cubin: bytes, options: str = "-g -c") -> str:
    """Return the SASS of a cubin."""
    tool = toolchain.find("nvdisasm")
    if tool is None:
        raise DSLSubprocessCallError(
            "nvdisasm was not found", hint="pip install nvidia-cuda-nvdisasm, or set CUDA_HOME"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [str(tool.path), *shlex.split(options), file.name], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise DSLSubprocessCallError(f"nvdisasm failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
