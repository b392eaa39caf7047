"""Cases: what a contract gives, and what is said of one that is not right."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kiln import workbench as wb
from kiln.workbench.core.cases import Choice, arch_fits, key_of
from kiln.workbench.core.contracts import ContractError

GOOD = """
import numpy as np

def kernel_fn(x, config=None):
    return x + 1

def reference_fn(x):
    return x + 1

def get_inputs(m=4, n=8, dtype="float32"):
    return [np.random.rand(m, n).astype(dtype)]
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "kernel.py") -> Path:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path / name

    return write


def complaint(path: Path) -> ContractError:
    with pytest.raises(ContractError) as caught:
        case = wb.load(path)
        case.inputs(case.problems[0])
    return caught.value


def test_what_a_contract_gives(write) -> None:
    more = """
        problems = [{"m": 2}, {"m": 3, "dtype": "float64"}]
        tolerance = {"rtol": 1e-3, "atol": 1e-3}
        arch = "sm_80+"
        def flops_bytes(m, n, dtype): return m * n, 8 * m * n
        baselines = {"twice": lambda x: x + x}
    """
    case = wb.load(write(GOOD + textwrap.dedent(more)))
    assert case.problems == [{"m": 2, "n": 8, "dtype": "float32"}, {"m": 3, "n": 8, "dtype": "float64"}]
    assert case.problem(1).m == 3
    assert case.problem({"n": "16"}) == {"m": 2, "n": 16, "dtype": "float32"}
    [x] = case.inputs(case.problem(), seed=3)
    assert x.shape == (2, 8)
    assert np.array_equal(x, case.inputs(case.problem(), seed=3)[0])
    assert not np.array_equal(x, case.inputs(case.problem(), seed=4)[0])
    assert np.array_equal(case.kernel(x), case.reference(x))
    assert case.flops_bytes(case.problem()) == (16, 128)
    assert list(case.baselines) == ["twice"]
    assert wb.load(case.where).digest() == case.digest()


def test_without_problems_the_defaults_are_the_problem(write) -> None:
    assert wb.load(write(GOOD)).problems == [{"m": 4, "n": 8, "dtype": "float32"}]
    assert wb.load(
        write(GOOD.replace('m=4, n=8, dtype="float32"', "").replace("m, n", "3").replace("dtype", "'f4'"))
    ).problems == [{}]


def test_configs_are_each_there_once_with_reasons(write) -> None:
    more = """
        configs = {"tile": [32, 64, 32], "stages": [1, 2]}
        def validate(config, problem, device):
            if config["tile"] > problem.m * 8:
                return f"a tile of {config['tile']} rows, and there are {problem['m']}"
            return config["stages"] * config["tile"] < 64 and device.smem > 0
    """
    case = wb.load(write(GOOD + textwrap.dedent(more)))
    assert case.configs(case.problem()) == [
        Choice({"tile": 32, "stages": 1}),
        Choice({"tile": 32, "stages": 2}, ("refused by validate, without a reason",)),
        Choice({"tile": 64, "stages": 1}, ("a tile of 64 rows, and there are 4",)),
        Choice({"tile": 64, "stages": 2}, ("a tile of 64 rows, and there are 4",)),
    ]


def test_c4_what_is_missing_or_misspelt(write) -> None:
    for old, new, said, line in [
        ("def get_inputs", "def get_input", "'get_inputs', and this one does not; it has 'get_input'", 10),
        ("def kernel_fn", "def kernel", "it has 'kernel': did you mean that?", 4),
        ("def reference_fn", "def _f", "a contract defines 'reference_fn', and this one does not\n", None),
        ("import numpy as np", "import numpy as np\ntolerence = 3", "did you mean 'tolerance'?", 3),
        ("import numpy as np", "import numpy as np\narch = 'sm90'", "'sm90' is no architecture; write", 3),
        ("import numpy as np", "import numpy as np\nproblems = []", "a list of dicts with at least one", 3),
        ("import numpy as np", "import numpy as np\nproblems = [{'k': 3}]", "'k', which get_inputs does not take", 3),
        ("m=4, n=8", "m, n", "parameters without a default, and there is no `problems`: m, n", 10),
        ("import numpy as np", "import numpy as np\nconfigs = [{}]\ntolerance = 'some'", 'tolerance is {"rtol"', 4),
        (", config=None", "):\n    return x\nconfigs = []\ndef g(", "so kernel_fn takes config=", 4),
        (
            "return [np.random.rand(m, n).astype(dtype)]",
            "return [m, n]",
            "returns arrays (torch, numpy), not [4, 8]",
            10,
        ),
        ("return [np.random.rand(m, n).astype(dtype)]", "return np.zeros((m, n))", "(4, 8); write [x]", 10),
        ("return [np.random.rand", "return [np.randm.rand", "get_inputs raised AttributeError: module 'numpy'", 11),
    ]:
        assert old in GOOD
        error = complaint(write(GOOD.replace(old, new, 1)))
        assert said in str(error)
        assert error.line == line, said
        assert f"kernel.py:{line or 1}: " in str(error)


def test_c4_what_cannot_be_imported(write) -> None:
    assert complaint(write("")).message.startswith("a contract defines 'kernel_fn'")
    error = complaint(write("x = 1\ndef f(:\n"))
    assert (error.line, "SyntaxError" in str(error)) == (2, True)
    error = complaint(write("def f():\n    raise ValueError('too late')\nf()\n"))
    assert (error.line, error.message) == (2, "importing it raised ValueError: too late")
    assert "raise ValueError('too late')" in str(error)
    assert "SystemExit: 3" in str(complaint(write("import sys\nsys.exit(3)\n")))
    write("1/0", "helper_that_divides.py")
    error = complaint(write("import helper_that_divides"))
    assert (Path(error.file).name, error.line) == ("helper_that_divides.py", 1)
    with pytest.raises(ContractError, match=r"did you mean 'kernel.py'\?"):
        wb.load(write("").with_name("kernl.py"))
    with pytest.raises(ContractError, match="no file and no module 'no_such_module'"):
        wb.load("no_such_module")


def test_fields_are_checked(write) -> None:
    case = wb.load(write(GOOD))
    with pytest.raises(ContractError, match="did you mean 'dtype'"):
        case.problem({"dtyp": "float16"})
    with pytest.raises(ContractError, match="the field 'm' takes int, as in m=4"):
        case.problem({"m": "many"})
    with pytest.raises(ContractError, match="there is no problem 7"):
        case.problem(7)


@dataclass(frozen=True)
class Fit:
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Tiling:
    tile: int

    def validate(self, plan) -> Fit:
        return Fit(() if self.tile <= plan.n else (f"{self.tile} > {plan.n}",))


class Kernel:
    def __init__(self, x, tiling):
        self.output_tensors, self.x, self.tiling = [np.empty_like(x)], x, tiling

    def run(self, tiling=None):
        self.output_tensors[0][:] = self.x * (tiling or self.tiling).tile


@dataclass
class Scaled:
    n: int = 8
    dtype: str = "float32"

    def prepare_inputs(self):
        return [np.ones(self.n, self.dtype)]

    def reference_fn(self, x):
        return x * 4

    def _autotune_configs(self):
        return [Tiling(4), Tiling(16)]

    def _algorithmic_flops_bytes(self):
        return self.n, 8 * self.n

    def plan(self, x):
        return Kernel(x, Tiling(4))


def test_a_plan_is_a_case() -> None:
    for given, n in ((Scaled, 8), (Scaled(n=2), 2)):
        case = wb.load(given)
        assert (case.name, case.problems) == ("scaled", [{"n": n, "dtype": "float32"}])
        problem = case.problem()
        [x] = case.inputs(problem)
        assert np.array_equal(case.kernel(x, problem=problem), case.reference(x, problem=problem))
        assert case.kernel(x, problem=problem, config={"tile": 16})[0] == 16
        assert case.flops_bytes(problem) == (n, 8 * n)
        refused = [each.reasons for each in case.configs(problem)]
        assert refused == ([(), ("16 > 8",)] if n == 8 else [("4 > 2",), ("16 > 2",)])


def test_keys_change_with_what_matters(write) -> None:
    write("factor = 1", "helper_of_key.py")
    write("factor = 1", "unrelated.py")
    path = write("import helper_of_key\n" + GOOD)
    env = {"kiln": "1", "ptxas": "13", "gpu": "H200", "driver": "580", "node": "a"}

    def key(problem={"m": 1}, config=None, protocol="p", **changed):
        return key_of("tune", wb.load(path), problem, config, env | changed, protocol)

    first = key()
    write("factor = 2", "unrelated.py")
    assert key(node="b") == first
    others = [key({"m": 2}), key(config={"t": 1}), key(protocol="q"), *(key(**{name: "x"}) for name in list(env)[:4])]
    write("factor = 2", "helper_of_key.py")
    others.append(key())
    path.write_text(path.read_text() + "\n# changed\n")
    others.append(key())
    assert len({first, *others}) == 10


@pytest.mark.parametrize(
    ("wanted", "here", "fits"),
    [
        ("sm_80+", "sm_90", True),
        ("sm_90a", "sm_90", True),
        ("sm_90a", "sm_100", False),
        ("sm_100a, sm_103a", "sm_103a", True),
        ("sm_100a, sm_103a", "sm_120", False),
        ("sm_90+", "sm_80", False),
    ],
)
def test_architectures(wanted: str, here: str, fits: bool) -> None:
    assert arch_fits(wanted, here) == fits


def test_files_of_packages(tmp_path: Path) -> None:
    """Relative imports work, siblings are found, and two projects may have packages of one name."""
    for number in (1, 2):
        folder = tmp_path / str(number) / "package_of_two"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / f"beside_{number}.py").write_text(f"value = {number}")
        text = GOOD.replace("x + 1", "x + value")
        relative = "from .beside_1 import value" if number == 1 else "from beside_2 import value"
        (folder / "kernel.py").write_text(f"{relative}\n{text}")
        case = wb.load(folder / "kernel.py")
        assert case.name == "package_of_two"
        assert case.kernel(np.zeros(1))[0] == number
        assert {path.name for path in case.sources} == {"__init__.py", "kernel.py", f"beside_{number}.py"}
        # Anew each time.
        (folder / "kernel.py").write_text(f"{relative}\nvalue += 10\n{text}")
        assert wb.load(folder / "kernel.py").kernel(np.zeros(1))[0] == number + 10


def test_a_module_may_have_the_name_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the current folder is on the path already, as with `python -m kiln`."""
    folder = tmp_path / "named_twice"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (folder / "__init__.py").touch()
    (folder / "beside.py").write_text("value = 1")
    (folder / "named_twice.py").write_text(f"from .beside import value\n{GOOD}")
    assert wb.load(folder / "named_twice.py").kernel(np.zeros(1))[0] == 1
