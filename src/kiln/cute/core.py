"""Names that programs take from the language's inner module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._support import lazy
from .atoms.atom import ThrCopy, TiledCopy  # noqa: F401 - their place until 4.6
from .atoms.mma import ThrMma, TiledMma  # noqa: F401
from .host.addresses import *  # noqa: F403
from .layout import *  # noqa: F403
from .layout.composed_layout import ComposedLayout as _ComposedLayout  # noqa: F401 - a name programs know
from .tensor.assumptions import *  # noqa: F403
from .tensor.pointer import *  # noqa: F403
from .tensor.structures import *  # noqa: F403
from .tensor.tensor import *  # noqa: F403
from .tensor.tensor_ssa import *  # noqa: F403

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {"IntValue": "."})


class _Shape(tuple[object, ...]):
    """A shape that has a type of the IR, whose attribute it is itself."""

    @property
    def type(self) -> _Shape:
        return self

    @property
    def attribute(self) -> _Shape:
        return self


def _pack_shape(shape: object, *, loc: object = None, ip: object = None) -> Any:
    """Return a shape: tuples are shapes as they are."""
    return _Shape(shape) if isinstance(shape, tuple) else shape


_pack_tile = _pack_shape
