"""Runs at the start of every Python process that a program under `kiln run` starts: serves `cutlass` there, too.

`kiln run` puts this folder first on PYTHONPATH. Such processes may have nothing to do with kernels, or may be of
another Python, so nothing of Kiln is imported until `cutlass` is.
"""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.realpath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class _Cutlass:
    """Answers the first import of `cutlass`, and hands over to Kiln's finder."""

    def find_spec(self, name, path=None, target=None):
        if name != "cutlass":
            return None
        try:
            import kiln  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "kiln":
                raise
            sys.path.append(_ROOT)
        from kiln import _alias

        _alias.install()
        sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        return _alias.AliasFinder().find_spec(name)


def _run_hidden():
    """Run the environment's own `sitecustomize`, which this one hides, and leave `sys.path` as it would be without us."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        hidden = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(hidden)


sys.meta_path.insert(0, _Cutlass())  # pyright: ignore[reportArgumentType]
_run_hidden()
