"""Plans: problems as dataclasses, kernels with their arrays, tilings that say why they do not fit."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln import workbench as wb
from kiln.hardware import toolchain
from kiln.workbench import kernel_plan
from kiln.workbench.kernel_plan import CuteKernel, Fit, KernelPlan, Tiling


@dataclasses.dataclass(frozen=True)
class Rows(Tiling):
    rows: int = 4
    num_warps: int = 1

    def validate(self, pd):
        return self.divides("rows", "m", pd) & self.fits("sm_90a", registers=32)


@cute.kernel
def plan_scale(x: cute.Tensor, y: cute.Tensor, rows: cute.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    for i in range(rows):
        y[b * rows + i, t] = x[b * rows + i, t] * 2.0


@cute.jit
def launch_plan_scale(x: cute.Tensor, y: cute.Tensor, rows: cute.Constexpr):
    plan_scale(x, y, rows).launch(grid=(x.shape[0] // rows, 1, 1), block=(32, 1, 1))


@dataclasses.dataclass
class Scale(KernelPlan):
    """Twice each element."""

    m: int = 8
    causal: bool = False
    arch = "sm_80+"
    tiling = Rows(2)

    def prepare_inputs(self):
        return [np.arange(self.m * 32, dtype=np.float32).reshape(self.m, 32)]

    def reference_fn(self, x):
        return x * 2

    def _autotune_configs(self):
        return [Rows(1), Rows(2), Rows(3)]

    def _algorithmic_flops_bytes(self):
        return self.m * 32, self.m * 32 * 8

    def plan(self, x):
        y = np.zeros_like(x)
        return CuteKernel(
            plan_scale,
            lambda tiling: launch_plan_scale(x, y, tiling.rows),
            [x],
            [y],
            self.tiling,
            self._autotune_configs(),
            self._algorithmic_flops_bytes,
        )


def test_a_tiling_says_why_it_does_not_fit():
    assert Rows(4).validate(Scale(m=8)) and Rows(4).threads == 32
    fit = Rows(3, num_warps=33).validate(Scale(m=8))
    assert not fit
    assert fit.reasons == ("rows = 3 does not divide m = 8", "1056 threads per block, and sm_90 has 1024")
    assert Rows().fits("sm_120a", smem=100 << 10).reasons == (
        "102400 bytes of shared memory per block, and sm_120 has 101376",
    )
    assert Rows().fits("sm_90a", smem=227 << 10) and not Rows().fits("sm_80", cluster=2)
    assert "384 threads with 255 registers" in str(Rows().fits("sm_90", threads=384, registers=255))
    assert Rows().fits("sm_90", threads=256, registers=255)
    assert not Rows(0).divides("rows", 8)
    with pytest.raises(AttributeError, match="define the property `threads`"):
        Tiling().fits("sm_90")


def test_answers_of_validate_become_a_fit():
    assert Fit.of(True) and not Fit.of(False)
    assert Fit.of(False, "Rows.validate()").reasons == ("Rows.validate() says no",)
    assert Fit.of("too wide").reasons == ("too wide",) and Fit.of("") and Fit.of([])
    assert (Fit(("a",)) & False & True).reasons == ("a", "validate() says no")


def test_a_plan_runs_and_its_kernel_knows_it():
    plan = Scale(m=4)
    (x,) = plan.prepare_inputs()
    kernel = plan.plan(x)
    assert (plan.problem, plan.kernel_name(), kernel.name, kernel.plan) == (
        {"m": 4, "causal": False},
        "test_kernel_plan",
        "plan_scale",
        plan,
    )
    with kiln.target("cpu"):
        np.testing.assert_array_equal(kernel.run(), x * 2)
        np.testing.assert_array_equal(plan.plan(x).run(Rows(4)), x * 2)


@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="needs ptxas")
def test_a_kernel_is_compiled_into_files(tmp_path):
    written = Scale(m=4).plan(*Scale(m=4).prepare_inputs()).compile(tmp_path / "out", arch="sm_90a")
    names = {path.name for path in written}
    assert {"plan_scale.mlir", "plan_scale.ptx", "plan_scale.cubin", "resources.json"} <= names
    found = json.loads((tmp_path / "out" / "resources.json").read_text())["plan_scale"]
    assert (found["arch"], found["grid"], found["blocks_per_sm"]) == ("sm_90a", [2, 1, 1], 32)
    assert found["limited_by"] == "blocks" and found["registers"] > 0


def test_a_kernel_without_a_plan_cannot_be_verified():
    with pytest.raises(ValueError, match="the kernel plan_scale has no plan"):
        CuteKernel(plan_scale, print).verify()


def test_a_kernel_hands_its_problem_to_the_verbs(monkeypatch):
    asked = []
    for verb in ("verify", "bench"):
        monkeypatch.setattr(
            wb.Case, verb, lambda self, *given, verb=verb, **options: asked.append((verb, given, options))
        )
    best = SimpleNamespace(best={"rows": 3, "num_warps": 1})
    monkeypatch.setattr(
        wb.Case, "tune", lambda self, problem, **options: asked.append(("tune", problem, options)) or best
    )
    plan = Scale(m=6)
    kernel = plan.plan(*plan.prepare_inputs())
    kernel.verify(seeds=1), kernel.benchmark(), kernel.autotune(top=2)
    assert asked == [
        ("verify", (), {"problems": [plan.problem], "seeds": 1}),
        ("bench", (plan.problem,), {"config": {"rows": 2, "num_warps": 1}}),
        ("tune", plan.problem, {"top": 2}),
    ]
    assert kernel.tiling is not None and kernel.tiling == Rows(3)


def test_a_plan_is_a_case_with_its_tilings():
    case = wb.load(Scale)
    assert case.problems == [{"m": 8, "causal": False}] and case.arch == "sm_80+"
    assert Path(case.file).name == Path(__file__).name
    problem = case.problem({"m": 6})
    assert case.flops_bytes(problem) == (192, 1536)
    assert [choice.reasons for choice in case.configs({"m": 8, "causal": False})] == [
        (),
        (),
        ("rows = 3 does not divide m = 8",),
    ]
    inputs = case.inputs(problem)
    with kiln.target("cpu"):
        for config in (None, Rows(3), {"rows": 3, "num_warps": 1}, {"rows": 6}):
            got = case.kernel(*inputs, problem=problem, config=config)
            np.testing.assert_array_equal(got, case.reference(*inputs, problem=problem))
    assert wb.load(Scale(m=16)).problems == [{"m": 16, "causal": False}]


def test_what_a_plan_lacks_is_named():
    @dataclasses.dataclass
    class Empty(KernelPlan):
        n: int

    for missing in (Empty(1).prepare_inputs, Empty(1).reference_fn, Empty(1).plan):
        with pytest.raises(NotImplementedError, match=f"Empty.{missing.__name__}"):
            missing()
    case = wb.load(Empty(1))
    assert not case.has_configs and case.flops_bytes(case.problem()) is None

    class Wrong(Empty):
        def plan(self):
            return 3

    with pytest.raises(TypeError, match=r"Wrong.plan\(\) returned int"):
        Wrong(1).plan()


def test_a_package_of_plans_has_a_command_line(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "planned" / "kernel" / "mla" / "mla_decode_v2"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:3]):
        (package / "__init__.py").write_text("")
    (folder / "mla_decode_v2.py").write_text(
        "import dataclasses\nfrom kiln.workbench.kernel_plan import KernelPlan\n\n\n"
        "@dataclasses.dataclass\nclass MlaDecode(KernelPlan):\n    b: int = 32\n    t: int = 4096\n"
    )
    (folder / "helper.py").write_text("raise RuntimeError('nobody imports this')\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[tuple[str, list[str]]] = []
    statuses = {"verify": 0}
    monkeypatch.setattr(
        kernel_plan, "_verb", lambda name: lambda words: (called.append((name, list(words))), statuses.get(name, 0))[1]
    )
    run = lambda *words: kernel_plan.main("planned.kernel", words)  # noqa: E731
    assert run() == 2 and "mla_decode_v2" in capsys.readouterr().err
    assert run("--help") == 0 and run("mla_decode") == 2
    assert "did you mean 'mla_decode_v2'?" in capsys.readouterr().err
    where = f"{folder / 'mla_decode_v2.py'}:MlaDecode"
    assert run("mla_decode_v2", "--b=16", "--prof-type=ncu", "--check", "--lines", "3") == 0
    assert called == [
        ("verify", [where, "--set", "b=16", "--quick"]),
        ("profile", [where, "--set", "b=16", "--lines", "3", "--prof-type", "ncu"]),
    ]
    del called[:]
    statuses["verify"] = 1
    assert run("mla_decode_v2", "--check") == 1 and [name for name, _ in called] == ["verify"]
    del called[:]
    plan = sys.modules["planned.kernel.mla.mla_decode_v2.mla_decode_v2"].MlaDecode(t=8)
    with pytest.raises(SystemExit) as ended:
        plan.benchmark_kernel_argparse(["--b", "4"])
    assert ended.value.code == 0
    assert called == [("bench", [where, "--set", "b=4", "--set", "t=8"])]
    with pytest.raises(SystemExit):
        run("mla_decode_v2", "--prof-type=fast")
    del called[:]
    assert run("mla_decode_v2", "--prof_type=static") == 0 and called[0][1][-2:] == ["--prof-type", "static"]
