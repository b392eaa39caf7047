"""The dialect that the operations of this folder belong to."""

from ...mlir import ir
from ..cute import info
from ..declaration import Dialect


class CuteNvgpu(Dialect, name="cute_nvgpu"):
    """What NVIDIA hardware does beyond arithmetic and plain memory."""


def wrong_space(pointer: ir.Value, what: str, *spaces: str) -> str:
    """Return the rule that a pointer breaks which is not into one of some spaces, or generic; or an empty text.

    The shared memory of the cluster counts as shared memory.
    """
    space = info(pointer.type).space
    fits = space in (*spaces, "generic") or (space == "dsmem" and "smem" in spaces)
    return "" if fits else f"has its {what} in {space}: it is in {' or '.join(spaces)}"
