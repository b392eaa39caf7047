"""Instructions of the hardware as functions: a thread's place, synchronisation, memory; one module for each unit."""

from __future__ import annotations

from ..._support import lazy
from ...hardware.architectures import Arch
from . import (
    arithmetic,
    async_copy,
    atomic,
    block_barrier,
    cluster,
    control,
    fence,
    inline_assembly,
    launch_control,
    mbarrier,
    smem,
    tensor_memory,
    thread,
    values,
    warp,
)
from .arithmetic import *
from .async_copy import *
from .atomic import *
from .block_barrier import *
from .cluster import *
from .control import *
from .fence import *
from .inline_assembly import *
from .launch_control import *
from .mbarrier import *
from .smem import *
from .tensor_memory import *
from .thread import *
from .values import *
from .warp import *

__dir__ = lazy.listing(__name__)
__all__ = ["Arch"]
__all__ += arithmetic.__all__
__all__ += async_copy.__all__
__all__ += atomic.__all__
__all__ += block_barrier.__all__
__all__ += cluster.__all__
__all__ += control.__all__
__all__ += fence.__all__
__all__ += inline_assembly.__all__
__all__ += launch_control.__all__
__all__ += mbarrier.__all__
__all__ += smem.__all__
__all__ += tensor_memory.__all__
__all__ += thread.__all__
__all__ += values.__all__
__all__ += warp.__all__
