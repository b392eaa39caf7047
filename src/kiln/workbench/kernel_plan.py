"""Kernels as classes: a `KernelPlan` is a problem, its `plan` makes a `CuteKernel`, a `Tiling` is its config.

    @dataclass
    class RowSums(KernelPlan):                   # in row_sums.py: the file names the kernel
        m: int = 4096
        n: int = 1024                            # fields are the problem, and options of the command line
        tiling = Rows(4)                         # the Tiling where nothing was tuned
        arch = "sm_80+"

        def prepare_inputs(self): ...            # tensors
        def reference_fn(self, x): ...
        def plan(self, x): return CuteKernel(...)

A plan is a Case: `kiln verify row_sums.py` and all other verbs take it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import pkgutil
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..hardware import current
from ..hardware.architectures import Architecture, Generation, generation_of
from ..hardware.devices import Device
from ..hardware.occupancy import BARRIERS, REGISTERS_PER_THREAD, occupancy
from ..testing import dry_run
from .core import loading, text
from .core.artifacts import write_artifacts
from .core.options import Parser, flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CuteKernel", "Fit", "KernelPlan", "Tiling", "find", "main"]

PROF_TYPES = ("disabled", "annotation", "ncu", "nsys", "trace", "static")


@dataclasses.dataclass(frozen=True)
class Fit:
    """Whether something fits, and if not, why. It is true or false accordingly; `a & b` has the reasons of both."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def __and__(self, other: object) -> Fit:
        return Fit(self.reasons + Fit.of(other).reasons)

    __rand__ = __and__

    def __str__(self) -> str:
        return "; ".join(self.reasons) or "fits"

    @staticmethod
    def of(answer: object, of: str = "validate()") -> Fit:
        """Return the answer of a `validate`, a Fit, a reason, reasons or a truth value, as a Fit."""
        if isinstance(answer, Fit):
            return answer
        if isinstance(answer, str):
            return Fit((answer,) if answer else ())
        if isinstance(answer, (list, tuple)):
            return Fit(tuple(map(str, answer)))
        return Fit() if answer else Fit((f"{of} says no",))


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The config of a kernel. Derive a frozen dataclass whose fields are the tile sizes, stages and so on."""

    def validate(self, pd: Any) -> Fit | bool:
        """Return whether the tiling suits a problem (`pd`, a plan): `self.divides(...) & self.fits(...)`."""
        return Fit()

    @property
    def threads(self) -> int:
        """Threads of a CTA: 128 per `num_warpgroups` or 32 per `num_warps`. Override it for other kernels."""
        for name, each in (("num_warpgroups", 128), ("num_warps", 32)):
            if hasattr(self, name):
                return each * getattr(self, name)
        lacks = f"{type(self).__name__} has neither num_warpgroups nor num_warps"
        raise AttributeError(f"{lacks}: define the property `threads`")

    def divides(self, tile: int | str, extent: int | str, pd: Any = None) -> Fit:
        """Return whether a tile divides an extent: numbers, or names of fields of the tiling and the problem `pd`."""
        size = getattr(self, tile) if isinstance(tile, str) else tile
        of = getattr(pd, extent) if isinstance(extent, str) else extent
        if size > 0 and of % size == 0:
            return Fit()

        def shown(name: int | str, value: int) -> str:
            return f"{name} = {value}" if isinstance(name, str) else str(value)

        return Fit((f"{shown(tile, size)} does not divide {shown(extent, of)}",))

    def fits(
        self,
        device: str | Architecture | Generation | Device | None = None,
        *,
        threads: int | None = None,
        smem: int = 0,
        registers: int = 0,
        cluster: int = 1,
        barriers: int = 0,
    ) -> Fit:
        """Return whether a device can run one CTA of this tiling.

        `smem` is in bytes, `registers` per thread, `cluster` in CTAs. The default device is the one that is compiled
        for, the default threads are the tiling's.
        """
        of = _generation(device)
        threads = self.threads if threads is None else threads
        limits = (
            ("threads per block", threads, of.threads_per_block),
            ("bytes of shared memory per block", smem, of.smem_per_block),
            ("registers per thread", registers, REGISTERS_PER_THREAD),
            ("blocks in a cluster", cluster, of.cluster),
            ("named barriers", barriers, BARRIERS),
        )
        reasons = [f"{asked} {what}, and sm_{of.number} has {most}" for what, asked, most in limits if asked > most]
        if threads < 1:
            reasons.append(f"{threads} threads per block")
        if not reasons and not occupancy(of, threads, registers, smem, barriers).blocks:
            reasons.append(f"{threads} threads with {registers} registers each, and sm_{of.number} has {of.registers}")
        return Fit(tuple(reasons))


def _generation(device: Any) -> Generation:
    if device is None:
        return current.architecture().generation
    if isinstance(device, (Device, Architecture)):
        return device.generation
    return device if isinstance(device, Generation) else generation_of(device)


@dataclasses.dataclass
class CuteKernel:
    """A kernel with its arrays, ready to run."""

    kernel_fn: Any
    """The device function; its name is the kernel's."""
    launch_fn: Callable[[Any], Any]
    """A function that takes a tiling and launches: it makes descriptors and the grid and calls the host function."""
    input_tensors: Sequence[Any] = ()
    output_tensors: Sequence[Any] = ()
    tiling: Any = None
    autotune_configs: Sequence[Any] = ()
    algorithmic_flops_bytes_fn: Callable[[], tuple[float, float] | None] | None = None
    plan: KernelPlan | None = dataclasses.field(default=None, repr=False)
    """The plan it came from; `KernelPlan.plan` sets it."""

    @property
    def name(self) -> str:
        """The name of the device function."""
        return getattr(self.kernel_fn, "__name__", None) or getattr(self.kernel_fn, "name", "kernel")

    def run(self, tiling: Any = None) -> Any:
        """Launch the kernel, with another tiling if there is one; return the output, or a tuple of several."""
        if tiling is None:
            tiling = self.tiling if self.tiling is not None else next(iter(self.autotune_configs), None)
        self.launch_fn(tiling)
        outputs = tuple(self.output_tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    def compile(self, out_dir: str | Path, tiling: object = None, arch: str | None = None) -> list[Path]:
        """Compile for a GPU, present or not; write MLIR, PTX, cubin, SASS and `resources.json`; return the paths.

        A process does this for one architecture. Artefacts that need a missing tool (SASS without nvdisasm) are left
        out.
        """
        with dry_run(arch) as launches:
            self.run(tiling)
        return write_artifacts(launches, Path(out_dir))

    def autotune(self, **options: object) -> Any:
        """Tune the plan for this problem (`kiln tune`), and keep the chosen tiling."""
        tuning = self._case().tune(self._plan().problem, **options)
        if tuning.best is not None:
            self.tiling = self._tiling_of(getattr(tuning.best, "config", tuning.best))
        return tuning

    def benchmark(self, **options: object) -> Any:
        """Time the kernel (`kiln bench`)."""
        return self._case().bench(self._plan().problem, config=config_of(self.tiling), **options)

    def verify(self, **options: object) -> Any:
        """Check the kernel against the plan's reference (`kiln verify`)."""
        return self._case().verify(problems=[self._plan().problem], **options)

    def _tiling_of(self, config: Any) -> Any:
        for each in self.autotune_configs:
            if config_of(each) == config:
                return each
        return type(self.autotune_configs[0])(**config)

    def _plan(self) -> KernelPlan:
        if self.plan is None:
            hint = "return it from KernelPlan.plan"
            raise ValueError(f"the kernel {self.name} has no plan to make inputs and references: {hint}")
        return self.plan

    def _case(self) -> Any:
        return loading.load(self._plan())


@dataclasses.dataclass
class KernelPlan:
    """A problem and how to solve it. Derive a dataclass whose fields are the problem, each with a default."""

    arch: ClassVar[str] = ""
    """Architectures it runs on: "sm_80+", "sm_90a", "sm_100a, sm_103a" (`hardware.architectures.refusal`)."""
    tiling: ClassVar[Any] = None
    """The default tiling; None for the first of `_autotune_configs`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "plan" in cls.__dict__:
            cls.plan = _knows_its_plan(cls.__dict__["plan"])

    def prepare_inputs(self) -> Sequence[Any]:
        """Return the arrays that the kernel and the reference take."""
        raise NotImplementedError(f"{type(self).__name__}.prepare_inputs(self) is missing: it makes the input tensors")

    def reference_fn(self, *inputs: Any, **named: Any) -> Any:
        """Return what the kernel should compute."""
        raise NotImplementedError(f"{type(self).__name__}.reference_fn(self, *inputs) is missing")

    def plan(self, *inputs: Any, **named: Any) -> CuteKernel:
        """Return the kernel for such inputs, with its outputs."""
        raise NotImplementedError(f"{type(self).__name__}.plan(self, *inputs) is missing: it returns a CuteKernel")

    def _autotune_configs(self) -> Sequence[Any]:
        """Return the tilings to choose from."""
        return ()

    def _algorithmic_flops_bytes(self) -> tuple[float, float] | None:
        """Return the FLOPs and bytes that every kernel needs; None if unknown."""
        return None

    @property
    def problem(self) -> dict[str, Any]:
        """The fields, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}

    @classmethod
    def kernel_name(cls) -> str:
        """Return the name of the plan's file, or of its package's folder."""
        stem = Path(inspect.getfile(cls)).stem
        return Path(inspect.getfile(cls)).parent.name if stem in ("__init__", "__main__") else stem

    def benchmark_kernel_argparse(self, argv: Sequence[str] | None = None) -> None:
        """Run the command line of one plan (its fields, `--check`, `--prof-type`) and exit with the verb's status."""
        raise SystemExit(_command_line(type(self), sys.argv[1:] if argv is None else argv, self.problem))


def config_of(tiling: object) -> Any:
    """Return a tiling as JSON."""
    return dataclasses.asdict(tiling) if dataclasses.is_dataclass(tiling) and not isinstance(tiling, type) else tiling


def _knows_its_plan(plan: Callable[..., CuteKernel]) -> Callable[..., CuteKernel]:
    @functools.wraps(plan)
    def planned(self: KernelPlan, *inputs: object) -> CuteKernel:
        kernel = plan(self, *inputs)
        if not isinstance(kernel, CuteKernel):
            raise TypeError(f"{type(self).__name__}.plan() returned {type(kernel).__name__}: expected a CuteKernel")
        kernel.plan = self
        return kernel

    return planned


# --- command lines ---------------------------------------------------------------------------------------------------


def main(package: str, argv: Sequence[str] | None = None) -> int:
    """Run `python -m PACKAGE NAME --b=32 --prof-type=ncu --check` for the plans in a package; return the exit status.

    Its `__main__.py` is `raise SystemExit(kiln.workbench.kernel_plan.main(__package__))`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    names = dict(_modules(package))
    if not words or words[0].startswith("-"):
        asked = bool(words) and words[0] in ("-h", "--help")
        usage = f"usage: python -m {package} KERNEL [--FIELD=VALUE ...] [--check] [--prof-type=...]\n\nkernels:"
        print(usage, *sorted(names), sep="\n  ", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    if words[0] not in names:
        near = text.did_you_mean(words[0], names)
        there = f"there are: {', '.join(sorted(names))}" if names else "no module of it has a plan"
        print(f"{package} has no kernel {words[0]!r}{f' ({near})' if near else ''}; {there}", file=sys.stderr)
        return 2
    return _command_line(find(names[words[0]]), words[1:], {}, f"python -m {package} {words[0]}")


def find(module: str | types.ModuleType) -> type[KernelPlan]:
    """Return the plan class of a module; of several, the one that is defined last."""
    where = importlib.import_module(module) if isinstance(module, str) else module
    plans = list(plans_in(where))
    if not plans:
        raise TypeError(f"{where.__name__} has no class that derives from kiln.workbench.KernelPlan")
    return plans[-1]


def plans_in(module: types.ModuleType) -> Iterator[type[KernelPlan]]:
    """Yield the plan classes that a module defines."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, KernelPlan) and value.__module__ == module.__name__:
            yield value


def _modules(package: str) -> Iterator[tuple[str, str]]:
    """Yield the kernels of a package with their modules, by reading files for `KernelPlan`; imports packages only."""
    top = importlib.import_module(package)
    for module in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        if module.ispkg or module.name.endswith(".__main__"):
            continue
        spec = module.module_finder.find_spec(module.name, None)
        if spec and spec.origin and "KernelPlan" in Path(spec.origin).read_text():
            yield module.name.rpartition(".")[2], module.name


def _command_line(
    kind: type[KernelPlan], argv: Sequence[str], problem: Mapping[str, object], prog: str | None = None
) -> int:
    parser = Parser(prog=prog, description=(kind.__doc__ or "").strip().partition("\n")[0] or None)
    for field in dataclasses.fields(kind):
        option(parser, f"--{field.name} VALUE", f"by default {problem.get(field.name, field.default)}")
    flag(parser, "--check", "verify the kernel first")
    kind_of_profile = "the kind of profile; disabled: the time only"
    option(parser, "--prof-type", kind_of_profile, "--prof_type", choices=PROF_TYPES, default="disabled")
    args, rest = parser.parse_known_args(argv)
    where = f"{Path(inspect.getfile(kind)).resolve()}:{kind.__name__}"
    chosen = {name: json.dumps(value) if not isinstance(value, str) else value for name, value in problem.items()}
    passed = {field.name: getattr(args, field.name) for field in dataclasses.fields(kind)}
    chosen |= {name: value for name, value in passed.items() if value is not None}
    words = [where, *(word for name, value in chosen.items() for word in ("--set", f"{name}={value}"))]
    if args.check:
        status = _verb("verify")([*words, "--quick"])
        if status not in (0, 3):
            return status
    if args.prof_type == "disabled":
        return _verb("bench")([*words, *rest, *(["--no-verify"] if args.check else [])])
    return _verb("profile")([*words, *rest, "--prof-type", args.prof_type])


def _verb(name: str) -> Callable[[Sequence[str]], int]:
    return importlib.import_module(f"kiln.workbench.{name}").main
