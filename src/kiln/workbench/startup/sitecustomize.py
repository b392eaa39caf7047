"""Serves `cutlass`, and under `--target cpu` CUDA, in every Python process that a program under `kiln run` starts.

`kiln run` puts this folder first on PYTHONPATH. Such processes may have nothing to do with kernels, or may be of
another Python, so nothing of Kiln is imported until `cutlass` is (or torch or cuda-bindings, if CUDA is served).
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

_HERE = os.path.dirname(os.path.realpath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


_SERVES_CUDA = os.environ.get("KILN_TARGET", "").lower() == "cpu" and sys.version_info >= (3, 10)


class _FirstImport:
    """Answers the first import of a name that Kiln serves, and hands over to Kiln's finders.

    It does so when the module is loaded: Python calls finders with the lock of all imports, and a thread that imported
    Kiln there would wait for ever for modules that other threads are importing.
    """

    is_done = False

    def find_spec(self, name, path=None, target=None):
        if self.is_done or (name != "cutlass" and not (_SERVES_CUDA and name in ("torch", "cuda"))):
            return None
        spec = self._others(name, path, target)
        if name == "torch" and spec is None:
            return None
        if name == "cutlass" or spec is None:
            spec = ModuleSpec(name, None, is_package=True)
        spec.loader = self  # pyright: ignore[reportAttributeAccessIssue]
        return spec

    def create_module(self, spec):
        try:
            import kiln  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "kiln":
                raise
            sys.path.append(_ROOT)
        from kiln import _alias

        _alias.install()
        if _SERVES_CUDA:
            from kiln.workbench import serve_cuda

            serve_cuda.activate()
        self.is_done = True
        other = self._others(spec.name)
        if other is None:
            raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)
        spec.__class__ = type(other)
        vars(spec).update(vars(other))
        return spec.loader.create_module(spec)

    exec_module = None  # that of the loader found

    def _others(self, name, path=None, target=None):
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        return None


def _run_hidden():
    """Run the environment's own `sitecustomize`, which this one hides, and restore `sys.path`."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        hidden = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(hidden)


sys.meta_path.insert(0, _FirstImport())  # pyright: ignore[reportArgumentType]
_run_hidden()
