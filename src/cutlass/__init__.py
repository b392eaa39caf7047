"""Nothing but an alias: `cutlass.cute` is `kiln.cute`, the same module object. See `kiln._alias`."""

import sys


class _Early:
    """Answers for modules below `cutlass` that other threads import before Kiln's own finder is there."""

    needed = True

    @staticmethod
    def find_spec(name, path=None, target=None):
        return type(__spec__)(name, _Early) if _Early.needed and name.startswith(f"{__name__}.") else None

    @staticmethod
    def create_module(spec):
        import sys

        from kiln import _alias

        _alias.install()
        _alias.serve(sys.modules[__name__])
        spec_of_kiln = _alias.AliasFinder().find_spec(spec.name)
        if spec_of_kiln is None or spec_of_kiln.loader is None:
            raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)
        spec.__class__ = type(spec_of_kiln)
        vars(spec).update(vars(spec_of_kiln))
        return spec_of_kiln.loader.create_module(spec)

    exec_module = None  # that of the loader found


# The first statement: a thread that looked for a module while Python read this file found none, and nothing here can help it.
# Last in the list: a thread that looks for a module now comes to it, too. It stays: a thread would pass over the finder behind it.
sys.meta_path.append(_Early)

import kiln  # noqa: E402
from kiln import _alias  # noqa: E402

_alias.install()
_Early.needed = False
_alias.warn_of_rivals(stacklevel=2)
_alias.serve(sys.modules[__name__])
del sys, kiln, _alias
