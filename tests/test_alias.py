"""`cutlass` is Kiln under another name: the same module objects, however they are reached."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import sys
from pathlib import Path

import pytest

import cutlass
import kiln
from kiln import _alias, mlir
from kiln._support import unavailable
from kiln.base_dsl import settings

# The module paths that public programs import, each with the module that serves it. "{mlir}" is the bindings' package.
SERVED = {
    "cutlass.cute": "kiln.cute",
    "cutlass.cute.arch": "kiln.cute.arch",
    "cutlass.cute.arch.nvvm_wrappers": "kiln.cute.arch.nvvm_wrappers",
    "cutlass.cute.arch.smem": "kiln.cute.arch.smem",
    "cutlass.cute.atom": "kiln.cute.atom",
    "cutlass.cute.core": "kiln.cute.core",
    "cutlass.cute.experimental": "kiln.cute.experimental",
    "cutlass.cute.experimental.iket": "kiln.cute.experimental.iket",
    "cutlass.cute.math": "kiln.cute.math",
    "cutlass.cute.nvgpu": "kiln.cute.nvgpu",
    "cutlass.cute.nvgpu.common": "kiln.cute.nvgpu.common",
    "cutlass.cute.nvgpu.cpasync": "kiln.cute.nvgpu.cpasync",
    "cutlass.cute.nvgpu.tcgen05": "kiln.cute.nvgpu.tcgen05",
    "cutlass.cute.nvgpu.warp": "kiln.cute.nvgpu.warp",
    "cutlass.cute.nvgpu.warpgroup": "kiln.cute.nvgpu.warpgroup",
    "cutlass.cute.runtime": "kiln.cute.runtime",
    "cutlass.cute.tensor": "kiln.cute.tensor",
    "cutlass.cute.testing": "kiln.cute.testing",
    "cutlass.cute.typing": "kiln.cute.typing",
    "cutlass.cutlass_dsl": "kiln.cutlass_dsl",
    "cutlass.cutlass_dsl.cuda_jit_executor": "kiln.cutlass_dsl",
    "cutlass.base_dsl": "kiln.base_dsl",
    "cutlass.base_dsl.arch": "kiln.hardware.architectures",
    "cutlass.base_dsl.ast_preprocessor": "kiln.base_dsl.ast_preprocessor",
    "cutlass.base_dsl.dsl": "kiln.base_dsl.dsl",
    "cutlass.base_dsl.enums": "kiln.hardware.architectures",
    "cutlass.base_dsl.runtime.cuda": "kiln.cuda",
    "cutlass.base_dsl.typing": "kiln.base_dsl.typing",
    "cutlass.cuda": "kiln.cuda",
    "cutlass.experimental.primitives": "kiln.experimental.primitives",
    "cutlass.experimental.task_scheduling": "kiln.experimental.task_scheduling",
    "cutlass.jax": "kiln.jax",
    "cutlass.pipeline": "kiln.pipeline",
    "cutlass.testing": "kiln.testing",
    "cutlass.torch": "kiln.torch",
    "cutlass.utils": "kiln.utils",
    "cutlass.utils.blackwell_helpers": "kiln.utils.blackwell_helpers",
    "cutlass.utils.gemm.sm100": "kiln.utils.gemm.sm100",
    "cutlass.utils.hopper_helpers": "kiln.utils.hopper_helpers",
    "cutlass.vector": "kiln.vector",
    "cutlass._mlir_helpers.op": "kiln.cutlass_dsl",
    "cutlass.base_dsl._mlir_helpers.op": "kiln.cutlass_dsl",
    "cutlass.primitives": "kiln.experimental.primitives",
    "cutlass.utils.grouped_gemm_tile_scheduler": "kiln.utils.schedulers.grouped_gemm",
    "cutlass.utils.static_persistent_tile_scheduler": "kiln.utils.schedulers.static_persistent",
    "cutlass._mlir.ir": "{mlir}.ir",
    "cutlass._mlir.passmanager": "{mlir}.passmanager",
    "cutlass._mlir.extras": "{mlir}.extras",
    "cutlass._mlir.extras.types": "{mlir}.extras.types",
    "cutlass._mlir.dialects.arith": "{mlir}.dialects.arith",
    "cutlass._mlir.dialects.cf": "{mlir}.dialects.cf",
    "cutlass._mlir.dialects.func": "{mlir}.dialects.func",
    "cutlass._mlir.dialects.gpu": "{mlir}.dialects.gpu",
    "cutlass._mlir.dialects.llvm": "{mlir}.dialects.llvm",
    "cutlass._mlir.dialects.math": "kiln.cute.arch.math_dialect",
    "cutlass._mlir.dialects.nvvm": "kiln.experimental.nvvm_dialect",
    "cutlass._mlir.dialects.scf": "{mlir}.dialects.scf",
    "cutlass._mlir.dialects.vector": "{mlir}.dialects.vector",
    "cutlass._mlir.dialects.cute": "kiln.cute.nvgpu.cute_dialect",
    "cutlass._mlir.dialects.cute_nvgpu": "kiln.cute.nvgpu.cute_nvgpu_dialect",
    "cutlass._mlir._mlir_libs._cutlass_ir._mlir.ir": "{mlir}.ir",
}


@pytest.mark.parametrize("name", SERVED)
def test_every_module_path_of_public_programs(name):
    real = SERVED[name].format(mlir=mlir.PACKAGE)
    assert _alias.real_name(name) == real
    try:
        module = importlib.import_module(real)
    except ModuleNotFoundError as error:
        # Not in this version, or it wants an optional package: the alias must fail the same way, by the alias's name.
        with pytest.raises(ModuleNotFoundError) as missing:
            importlib.import_module(name)
        assert missing.value.name == error.name or name.startswith(missing.value.name or "?")
    else:
        assert importlib.import_module(name) is module
        assert sys.modules[name] is module
        assert module.__spec__ is not None
        assert module.__spec__.name == real


def _modules_of_kiln():
    for info in pkgutil.walk_packages(kiln.__path__, "kiln."):
        if not info.name.startswith("kiln.workbench.") and not info.name.endswith("__main__"):
            yield info.name


def test_every_module_of_kiln_has_its_alias():
    names = list(_modules_of_kiln())
    assert "kiln.mlir" in names
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:  # an optional framework is not installed
            assert not (error.name or "").startswith("kiln"), name
            continue
        assert importlib.import_module(name.replace("kiln", "cutlass", 1)) is module


def test_the_package_itself():
    assert sys.modules["cutlass"] is cutlass
    assert (cutlass.__name__, kiln.__name__) == ("cutlass", "kiln")
    assert set(dir(cutlass)) == set(dir(kiln))
    space: dict[str, object] = {}
    exec("from cutlass import *", space)
    assert space["Float32"] is cutlass.Float32 is kiln.Float32


def test_what_a_library_replaces_in_the_package_is_replaced_in_kiln(monkeypatch):
    for package, value in ((cutlass, max), (kiln, min)):
        with monkeypatch.context() as patch:
            patch.setattr(package, "select_", value)
            assert kiln.select_ is value
        assert cutlass.select_ is kiln.select_ is not value
    monkeypatch.setattr(cutlass, "mine", 1, raising=False)
    assert kiln.mine == 1  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.undo()
    assert not hasattr(kiln, "mine") and not hasattr(cutlass, "mine")


def test_names_that_stand_elsewhere_in_kiln():
    from cutlass._mlir_helpers import vector
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
    from cutlass.testing import benchmark, tune
    from cutlass.utils.print_latex import print_latex_tv

    assert vector.where is kiln.cute.where
    assert ExternalBinaryModule is kiln.cute.runtime.load_module
    assert (benchmark, tune) == (kiln.testing.benchmark, kiln.cute.testing.tune)
    assert print_latex_tv is kiln.utils.print_latex_tv
    shown: list[str] = []  # the module has the name of a function
    kiln.utils.print_latex(kiln.cute.make_layout((2, 2)), render_func=shown.append)
    assert "tikz" in shown[0]


@pytest.mark.parametrize(
    "module", ["cutlass", "cutlass.base_dsl", "cutlass.cute.arch", "cutlass.utils.blockscaled_layout"]
)
def test_a_recorded_name_that_kiln_lacks_is_missing_with_a_reason(module):
    """Libraries ask whether a name is there, so that it must not be."""
    lines = Path(unavailable._SURFACE).read_text().splitlines()
    names = [line[5:] for line in lines if line.startswith("name ") and line[5:].rpartition(".")[0] == module]
    served = importlib.import_module(module)
    reasons: list[str] = []
    for name in names:
        if name.rpartition(".")[2] in unavailable.NAMES.get(module.partition(".")[2], ()):
            continue
        with pytest.raises(AttributeError) as missing:
            getattr(served, name.rpartition(".")[2])
        reasons.append(str(missing.value))
    assert any(f"CuTe DSL has {names[0]}, and Kiln does not" in reason for reason in reasons)
    assert all("and Kiln does not" in reason or "it is kiln" in reason for reason in reasons), reasons
    with pytest.raises(AttributeError, match="'nothing_of_that_name'$"):
        served.nothing_of_that_name  # noqa: B018


def test_statement_forms_bind_the_same_module():
    space: dict[str, object] = {}
    exec(
        "import cutlass.mlir\n"
        "import cutlass.mlir as dotted\n"
        "from cutlass import mlir as taken\n"
        "from cutlass.mlir import PACKAGE\n"
        "from cutlass._mlir import ir\n"
        "from cutlass._mlir.dialects import llvm, arith as a\n"
        "from cutlass._mlir.dialects.llvm import AsmDialect\n"
        "import cutlass._mlir.dialects.scf as scf\n"
        "from cutlass._mlir.dialects import cute\n",
        space,
    )
    assert space["cutlass"] is cutlass
    assert space["dotted"] is space["taken"] is mlir
    assert space["PACKAGE"] is mlir.PACKAGE
    assert space["ir"] is mlir.ir
    assert space["llvm"] is mlir.dialect_module("llvm")
    assert space["a"] is mlir.dialect_module("arith")
    assert space["cute"] is importlib.import_module("kiln.cute.nvgpu.cute_dialect")
    assert space["scf"] is mlir.dialect_module("scf")


def test_bindings_are_reached_by_attribute_too():
    junction = importlib.import_module("cutlass._mlir")
    assert junction.ir is mlir.ir
    assert junction.dialects.vector is mlir.dialect_module("vector")
    assert junction._mlir_libs is importlib.import_module("cutlass._mlir._mlir_libs")
    assert callable(junction._mlir_libs.get_dialect_registry)
    with pytest.raises(AttributeError, match="nonsense"):
        junction.dialects.nonsense  # noqa: B018


def test_importing_an_alias_leaves_nothing_in_the_bindings():
    importlib.import_module("cutlass._mlir._mlir_libs._cutlass_ir._mlir.ir")
    assert not hasattr(importlib.import_module(f"{mlir.PACKAGE}._mlir_libs"), "_cutlass_ir")


@pytest.mark.parametrize("name", ["cutlass.nonsense", "cutlass.mlir.nonsense", "cutlass._mlir.dialects.nonsense"])
def test_a_module_that_does_not_exist(name):
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module(name)
    assert error.value.name == name


def test_other_names_are_left_alone():
    finder = _alias.AliasFinder()
    for name in ("kiln.mlir", "cutlass_library", "cutlassx.cute", "numpy"):
        assert finder.find_spec(name) is None


def test_find_spec_before_and_after_import(child):
    done = child(
        "-c",
        "import importlib.util as u, sys\n"
        "spec = u.find_spec('cutlass.mlir')\n"
        "assert spec.origin.endswith('mlir.py') and 'cutlass.mlir' not in sys.modules\n"
        "assert u.find_spec('cutlass.nonsense') is None\n"
        "import cutlass.mlir\n"
        "assert u.find_spec('cutlass.mlir').origin == spec.origin\n"
        "assert u.find_spec('cutlass').name == 'cutlass'\n",
    )
    assert done.returncode == 0, done.stderr


def test_inspect_pickle_and_reload(child):
    assert inspect.getmodule(_alias.AliasFinder) is _alias
    assert pickle.loads(pickle.dumps(_alias.AliasFinder)) is _alias.AliasFinder
    done = child(
        "-c",
        "import importlib, cutlass, kiln\n"
        "assert importlib.reload(cutlass) is cutlass and cutlass.cute is kiln.cute\n"
        "import cutlass.workbench.main as m\n"
        "assert importlib.reload(m) is m and m.__name__ == 'kiln.workbench.main'\n",
    )
    assert done.returncode == 0, done.stderr


def test_python_m(child):
    for module in ("cutlass", "kiln"):
        done = child("-m", module, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"kiln {kiln.__version__}\n", "")
    done = child("-m", "cutlass.nonsense")
    assert done.returncode == 1
    assert "No module named cutlass.nonsense" in done.stderr


def test_importing_the_alias_loads_nothing_slow(child):
    done = child("-c", "import sys, kiln; before = set(sys.modules); import cutlass; print(*set(sys.modules) - before)")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "kiln._alias" in loaded or "cutlass" in loaded
    assert not loaded & {"typing", "dataclasses", "inspect", "re", "importlib.metadata", "importlib.util", "pkgutil"}
    assert not {name for name in loaded if name.startswith(("kiln.", "torch", "numpy"))} - {"kiln._alias"}


def test_threads_get_the_finished_module(child):
    done = child(
        "-c",
        "import threading, cutlass\n"
        "found = []\n"
        "def work():\n"
        "    import cutlass.workbench.doctor as d\n"
        "    found.append((d, d.examine))\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert len(found) == 8 and len({id(d) for d, _ in found}) == 1, found\n",
    )
    assert done.returncode == 0, done.stderr


def test_the_paths_of_the_interface(child):
    """In a process of their own, since an import sets attributes of packages. It must not hide what they export."""
    done = child(
        "-c",
        """
import importlib, types, cutlass, kiln
from kiln import _alias
for path, homes in _alias.PATHS.items():
    if path.startswith("cutlass.jax"):  # needs JAX
        continue
    parent, _, last = path.rpartition(".")
    before = vars(importlib.import_module(parent)).get(last)
    assert before is None or isinstance(before, types.ModuleType), path
    module = importlib.import_module(path)
    space = {}
    exec(f"from {parent} import {last} as taken", space)
    assert space["taken"] is module is getattr(importlib.import_module(parent), last), path
    for home in homes.split() if "._" not in path else ():
        names = set(getattr(importlib.import_module(home), "__all__", ()))
        assert all(hasattr(module, name) for name in names), path
        assert names <= set(dir(module)) or f"kiln.{path.partition('.')[2]}" in homes.split(), path
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_paths_are_attributes_of_their_packages(child):
    done = child(
        "-c",
        "import cutlass\n"
        "print(cutlass.utils.layout.LayoutEnum is cutlass.tensor_utils.LayoutEnum is cutlass.tensor_utils.layout.LayoutEnum)\n"
        "print(cutlass.memory.SmemAllocator.__name__, cutlass.memory.tmem.TmemAllocator.__name__, cutlass.pipeline.sm90.__name__)\n"
        "print('SmemAllocator' in dir(cutlass.memory), hasattr(cutlass.memory, 'nothing'), hasattr(cutlass.utils, 'nothing'))\n",
    )
    assert done.stdout.splitlines() == ["True", "SmemAllocator TmemAllocator kiln.pipeline", "True False False"], (
        done.stderr
    )


@pytest.fixture
def installed(tmp_path):
    """A site folder in which distributions have installed packages into `cutlass`, and one that provides the interface."""
    for site, files in (
        ("theirs", ("operators/__init__.py", "operators/base.py", "kernels/__init__.py", "kernels/deep/__init__.py")),
        ("rival", ("__init__.py", "cute/__init__.py", "inner/__init__.py")),
    ):
        for file in files:
            path = tmp_path / site / "cutlass" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("from .base import WHO\n" if file == "operators/__init__.py" else f"WHO = {file!r}\n")
    return tmp_path / "theirs", tmp_path / "rival"


@pytest.mark.parametrize("first", ["import cutlass", "from kiln import _alias; _alias.take_over()"])
def test_others_install_into_the_package(child, installed, first):
    program = f"""
import sys
sys.path += {[str(site) for site in installed]!r}
{first}
import cutlass, kiln, cutlass.cute, kiln.kernels
assert cutlass.kernels.WHO == 'kernels/__init__.py' and cutlass.cute is kiln.cute
from cutlass import operators, kernels
from cutlass.kernels import deep
import cutlass.operators as again, pickle
assert operators is again and operators.WHO == 'operators/base.py' and operators.__name__ == 'cutlass.operators'
assert cutlass.kernels is kernels is not kiln.kernels and kernels.deep is deep and hasattr(kiln.kernels, 'gemm')
try: import cutlass.inner
except ModuleNotFoundError as error: print(error)
"""
    done = child("-W", "ignore", "-c", program)
    assert (done.stdout, done.stderr) == ("No module named 'cutlass.inner'\n", "")


def test_kernels_are_ours_where_nobody_else_has_any(child):
    done = child("-c", "import cutlass.kernels, kiln\nprint(cutlass.kernels is kiln.kernels)")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_programs_may_ask_for_the_version_of_what_they_import(monkeypatch):
    from importlib.metadata import PackageNotFoundError, version

    assert version("nvidia-cutlass-dsl") == version("nvidia_cutlass_dsl") == cutlass.__version__ == "4.8.1"
    for release in settings.CUTLASS_VERSIONS:
        monkeypatch.setenv("KILN_CUTLASS_VERSION", release)
        assert version("nvidia-cutlass-dsl") == cutlass.__version__ == release
        assert kiln.__version__ == "0.1.0"
    monkeypatch.setenv("KILN_CUTLASS_VERSION", "4.1.0")
    for ask in (lambda: version("nvidia-cutlass-dsl"), lambda: cutlass.__version__):
        with pytest.raises(kiln.DSLRuntimeError, match=r"KILN_CUTLASS_VERSION='4\.1\.0'"):
            ask()
    with pytest.raises(PackageNotFoundError):
        version("nvidia-cutlass")


def test_a_dialect_that_the_bindings_lack_is_no_attribute(monkeypatch):
    from kiln import mlir

    dialects = importlib.import_module("cutlass._mlir.dialects")
    for name in ("cutlass._mlir.dialects.torch", f"{mlir.PACKAGE}.dialects.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, f"{mlir.PACKAGE}.dialects._torch_ops_gen", None)
    monkeypatch.delattr(f"{mlir.PACKAGE}.dialects.torch", raising=False)
    monkeypatch.delitem(vars(dialects), "torch", raising=False)
    assert not hasattr(dialects, "torch")
    assert hasattr(dialects, "arith")
