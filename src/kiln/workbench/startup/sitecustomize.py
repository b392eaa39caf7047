"""Serves `cutlass`, and under `--target cpu` CUDA, in every Python process that a program under `kiln run` starts.

`kiln run` puts this folder first on PYTHONPATH. Such processes may have nothing to do with kernels, or may be of
another Python, so nothing of Kiln is imported until `cutlass` is (or torch or cuda-bindings, if CUDA is served).
"""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.realpath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


_SERVES_CUDA = os.environ.get("KILN_TARGET", "").lower() == "cpu" and sys.version_info >= (3, 10)


class _FirstImport:
    """Answers the first import of a name that Kiln serves, and hands over to Kiln's finders."""

    def find_spec(self, name, path=None, target=None):
        if name != "cutlass" and not (_SERVES_CUDA and name in ("torch", "cuda")):
            return None
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
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
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
