"""What `kiln profile` says to try first: each flaw is planted, and is not reported where it is not."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_traces import gemm
from nvidia_testing import needs_nvdisasm

import kiln
from kiln.bank_conflicts import AccessSession
from kiln.hardware import sass
from kiln.testing import dry_run
from kiln.workbench.core.answers import _findings
from kiln.workbench.profile import advice
from kiln.workbench.profile import cli as profile
from kiln.workbench.profile.advice import Facts, flaws
from kiln.workbench.profile.clock_profile import tensor_idle
from kiln.workbench.profile.code_patterns import patterns
from kiln.workbench.profile.result import Profile
from kiln.workbench.profile.static_profile import StaticProfile, static_profile

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "docs" / "knowledge" / "cases"


@pytest.fixture(autouse=True)
def _cases(monkeypatch):
    """Cases of the knowledge base can be imported, and take arrays of numpy."""
    monkeypatch.syspath_prepend(str(CASES))
    monkeypatch.setattr(importlib.import_module("arrays"), "on_gpu", lambda: False)
    yield
    for name in {path.stem for path in CASES.glob("*.py")} & set(sys.modules):
        del sys.modules[name]


def found(name, problem=0, **config):
    """The flaws of a case of the knowledge base by detector, as a static profile finds them."""
    case = importlib.import_module(name)
    fields = {**case.problems[0], **(problem or {})}
    chosen = {**case.configs[0], **config}
    inputs = case.get_inputs(**fields)
    with dry_run("sm_90a") as launches:
        case.kernel_fn(*inputs, chosen)
    with kiln.target("cpu"), AccessSession() as counted:
        case.kernel_fn(*inputs, chosen)
    result = Profile("static", name, [])
    result.extra = {
        "static": [each.to_json() for each in static_profile(launches)],
        "bank_conflicts": json.loads(counted.conflicts.json()),
        "coalescing": json.loads(counted.coalescing.json()),
    }
    work = SimpleNamespace(flops_bytes=lambda fields: case.flops_bytes(**fields))
    result.extra["moved"] = profile.bytes_moved(work, fields, result.extra["coalescing"])
    return {one.name: one for one in advice.advise(result)}


@needs_nvdisasm
@pytest.mark.parametrize(
    ("case", "problem", "flawed", "better", "name", "says"),
    [
        ("gates", 0, {"by": "precise"}, {"by": "approximate"}, "precise-division", "8 precise divisions"),
        ("copies", 0, {"align": 4}, {"align": 16}, "narrow-accesses", "4 instructions of 4 bytes"),
        ("transpose", 0, {"shared": "plain"}, {"shared": "padded"}, "bank-conflicts", "32-way bank conflicts"),
        ("rows", 0, {"hold": "nothing"}, {"hold": "registers"}, "read-again", "times the bytes of the arrays"),
    ],
)  # fmt: skip
def test_a_flaw_is_found_where_it_is_planted(case, problem, flawed, better, name, says):
    one = found(case, problem, **flawed)[name]
    assert says in one.fact and one.file.endswith(f"{case}.py") and one.line > 0
    assert name not in found(case, problem, **better)


@needs_nvdisasm
def test_operands_and_results_of_mma_sync():
    flaws_ = found("mma_gemm", {"k": 512}, operands="elements")
    assert "in each step" in flaws_["single-operands"].fact
    assert "store results 4 bytes at a time in 16 instructions, 2 times the sectors" in flaws_["narrow-results"].fact
    assert "copies-not-ahead" not in flaws_ and "through-registers" not in flaws_


def test_pages_of_advice_exist():
    pages = {path.stem for path in (ROOT / "docs").rglob("*.md")}
    named = {word for word in _strings(advice) if word in pages}
    assert len(named) >= 10
    text = advice.text([dataclasses.asdict(one) for one in found("transpose").values()])
    assert "what to try first" in text and "more: kiln kb show swizzle-instead-of-padding" in text
    for page in ("sixteen-byte-accesses", "approximate-division", "wait-for-all-wgmma", "blackwell", "equal-shares"):
        assert page in named


def _strings(module):
    tree = ast.parse(open(module.__file__).read())
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


# --- machine code ----------------------------------------------------------------------------------------------------

WGMMA_LOOP = r"""
.text.product:
	//## File "/a/product.py", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_4:
	//## File "/a/product.py", line 8
        /*0090*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], R24 ;
        /*00a0*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], R24 ;
        {work}
	//## File "/a/product.py", line 9
        /*00c0*/                   WARPGROUP.DEPBAR.LE gsb0, {left} ;
	//## File "/a/product.py", line 6
        /*00d0*/               @P2 BRA `(.L_x_4) ;
	//## File "/a/product.py", line 11
        /*00e0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00f0*/                   EXIT ;
"""
SOFTMAX = "\n".join(f"        /*0{0xB00 + 16 * n:x}*/   FADD R24, R24, R25 ;" for n in range(8))
PERSISTENT = """
.text.product:
.L_x_1:
	//## File "/a/product.py", line 8
        /*0080*/                   MOV R3, R4 ;
.L_x_4:
        /*0090*/                   HGMMA.64x128x16.F32 R24, gdesc[UR12], R24 ;
        /*00d0*/               @P2 BRA `(.L_x_4) ;
	//## File "/a/product.py", line 11
        /*00e0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00f0*/               @P1 BRA `(.L_x_1) ;
        /*0100*/                   EXIT ;
"""
COPY_LOOP = r"""
.text.product:
	//## File "/a/product.py", line 8
.L_x_4:
        {first}
	//## File "/a/product.py", line 7
        /*0040*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R6.64] ;
        /*0050*/                   LDGDEPBAR ;
        {last}
	//## File "/a/product.py", line 10
        /*0090*/                   HMMA.16816.F32 R24, R4, R8, R24 ;
        /*00d0*/               @P2 BRA `(.L_x_4) ;
        /*0100*/                   EXIT ;
"""
WAIT = "/*0060*/                   DEPBAR.LE SB0, 0x0 ;"


def names(text):
    return [(one.name, one.line) for one in patterns(sass.kernels(text)["product"])]


def test_waits_for_wgmma_in_every_step():
    assert names(WGMMA_LOOP.format(left="0x0", work="")) == [("wgmma-wait", 9)]
    assert names(WGMMA_LOOP.format(left="0x1", work="")) == []
    assert names(WGMMA_LOOP.format(left="0x0", work=SOFTMAX)) == [], "the accumulators are used in the step"
    assert names(PERSISTENT) == [], "a tile ends"


def test_copies_that_are_waited_for_at_once():
    assert names(COPY_LOOP.format(first="", last=WAIT)) == [("copy-wait", 7)]
    assert names(COPY_LOOP.format(first=WAIT, last="")) == [], "the copy runs beside the MMAs of this step"


def kernel(text="", **fields):
    code = patterns(sass.kernels(text)["product"]) if text else ()
    values = {
        "kernel": "product", "arch": "sm_90a", "grid": (132, 1, 1), "block": (128, 1, 1), "cluster": (1, 1, 1), "registers": 90,
        "spill_stores": 0, "spill_loads": 0, "stack": 0, "static_smem": 0, "dynamic_smem": 200_000, "barriers": 1,
        "mix": {"tensor": 8, "int": 90}, "patterns": code, "instructions": ("WGMMA", "TMA"),
    }  # fmt: skip
    return StaticProfile(**{**values, **fields})


def predicted(**fields):
    values = {
        "kernel": "product", "waves": 1.0, "ctas_per_sm": 1, "cycles": 1000.0, "busy": {"tensor": 0.6}, "what_ifs": [], "pipelines": [],
        "tensor_idle": {},
    }  # fmt: skip
    return {**values, **fields}


def test_what_a_wait_costs_is_how_long_tensor_cores_are_idle_after_it():
    trace = gemm()
    idle = tensor_idle(trace, 10_000.0)
    assert set(idle) == {"step.py:11"} and 0.05 < idle["step.py:11"] < 1.0
    static = kernel(WGMMA_LOOP.format(left="0x0", work=""))
    (one,) = flaws(Facts("product", static, clock=predicted(tensor_idle={"product.py:9": 0.12})))
    assert (one.name, one.line, one.cost, one.page) == ("wait-in-every-step", 9, 0.12, "wait-for-all-wgmma")
    assert flaws(Facts("product", static, clock=predicted(tensor_idle={"product.py:9": 0.0}))) == [], "it costs nothing"
    (unseen,) = flaws(Facts("product", static, clock=predicted()))
    assert (unseen.name, unseen.cost, unseen.by) == ("wait-in-every-step", None, "")
    (sampled,) = flaws(Facts("product", static, samples={("/a/product.py", 9): 0.3}))
    assert (sampled.cost, sampled.by) == (0.3, "samples at this line")


def test_one_accumulator_of_tensor_memory():
    one = kernel(arch="sm_100a", grid=(148, 1, 1), tmem_columns=256, accumulators=1, instructions=("tcgen05",))
    assert [each.name for each in flaws(Facts("product", one))] == ["one-accumulator"]
    two = dataclasses.replace(one, tmem_columns=512, accumulators=2)
    beside = dataclasses.replace(one, dynamic_smem=100_000)
    assert flaws(Facts("product", two)) == flaws(Facts("product", beside)) == []


def test_grids_stages_spills_and_copies():
    def only(static, **clock):
        return [each.name for each in flaws(Facts("product", static, clock=predicted(**clock)))]

    assert only(kernel(), waves=1.1) == only(kernel(), waves=0.5) == ["tail-wave"]
    assert only(kernel(), waves=3.97) == only(kernel(), waves=0.5, ctas_per_sm=2) == []
    assert only(kernel(spill_stores=64, spill_loads=64)) == ["spills"]
    late = {"lines": ["step.py:6"], "stages": 2, "fills": 20, "late": 300.0}
    small = kernel(dynamic_smem=100_000)
    (one,) = flaws(Facts("product", small, clock=predicted(pipelines=[late]), files={"step.py": "/a/step.py"}))
    assert (one.name, one.file, one.line, one.cost) == ("late-data", "/a/step.py", 6, 0.3)
    assert "room for 4" in one.change
    assert only(kernel(), pipelines=[{**late, "late": 20.0}]) == []
    slow = [{"change": "copies twice as fast", "change_of_time": -0.2, "cycles": 800.0}]
    assert only(kernel(), what_ifs=slow) == ["tiles-loaded-alone"]
    assert only(kernel(cluster=(2, 1, 1)), what_ifs=slow) == []


def access(operation, line, sectors, ideal, width=2):
    span = {"file": "/a/product.py", "line": line}
    counts = {"accesses": 10, "sectors": sectors, "ideal": ideal, "excess": sectors - ideal}
    return {"kernel": "product", "operation": operation, "width": width, "span": span, **counts}


def test_accesses_that_are_not_coalesced():
    plain = kernel(mix={"global": 2}, instructions=())
    (one,) = flaws(Facts("product", plain, global_=[access("ld", 5, 320, 40), access("st", 6, 40, 40)]))
    assert (one.name, one.line) == ("uncoalesced", 5) and "touch 32 sectors, and need 4" in one.fact
    assert flaws(Facts("product", plain, global_=[access("ld", 5, 40, 40)])) == []


def test_flaws_are_findings_of_the_answer():
    one = flaws(Facts("product", kernel(), clock=predicted(waves=1.5)))[0]
    (finding,) = _findings("profile", [{"extra": {"advice": [dataclasses.asdict(one)]}}])
    assert (finding.kind, finding.severity) == ("speed", "warning")
    assert "costs 25% of the time" in finding.message and "kiln kb show equal-shares" in finding.help
