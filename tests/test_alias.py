"""`cutlass` is Kiln under another name: the same module objects, however they are reached."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import pkgutil
import sys

import pytest

import cutlass
import kiln
from kiln import _alias, mlir

# The module paths that public programs import, each with the module that serves it. "{mlir}" is the bindings' package.
SERVED = {
    "cutlass": "kiln",
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
    "cutlass.cutlass_dsl.cuda_jit_executor": "kiln.cutlass_dsl.cuda_jit_executor",
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
    "cutlass._mlir_helpers.op": "kiln._mlir_helpers.op",
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
    "cutlass._mlir.dialects.nvvm": "kiln.cute.arch.nvvm_dialect",
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
    assert cutlass is kiln
    assert sys.modules["cutlass"] is kiln
    assert getattr(cutlass, "__version__") == kiln.__version__
    assert kiln.__name__ == "kiln"


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
    assert space["cutlass"] is kiln
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
        "assert u.find_spec('cutlass').name == 'kiln'\n",
    )
    assert done.returncode == 0, done.stderr


def test_inspect_pickle_and_reload(child):
    assert inspect.getmodule(_alias.AliasFinder) is _alias
    assert pickle.loads(pickle.dumps(_alias.AliasFinder)) is _alias.AliasFinder
    done = child(
        "-c",
        "import importlib, cutlass, kiln\n"
        "assert importlib.reload(cutlass) is kiln and cutlass is kiln\n"
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


def test_programs_may_ask_for_the_version_of_what_they_import():
    from importlib.metadata import PackageNotFoundError, version

    assert version("nvidia-cutlass-dsl") == version("nvidia_cutlass_dsl") == kiln.__version__
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
