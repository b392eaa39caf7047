"""CUDA without a GPU: serves torch's `cuda` device and cuda-bindings from host memory.

For programs run by `kiln run --target cpu`, in their child processes too. `activate()` imports neither torch nor cuda-
bindings: it waits for the program to do so.

    device.py      the GPU that programs see
    marks.py       the mark of a CPU tensor that counts as one on the GPU
    tensors.py     the torch function mode that makes and moves marked tensors
    callbacks.py   Python that torch calls back: backward functions, kernels of operators, compiled functions
    flex_attention.py  `torch.nn.attention.flex_attention`
    half_matmul.py GEMMs of 16-bit floats, rounded once as a GPU does
    scaled_mm.py   GEMMs with block scale factors, which torch has on GPUs only
    generators.py  random numbers of the device
    torch_cuda.py  `torch.cuda`
    streams.py     streams and events
    graphs.py      CUDA graphs: work is recorded and run again
    memory.py      allocations made through cuda-bindings
    bindings.py    `cuda.bindings.driver` and `cuda.bindings.runtime`; types.py replaces the package if it is missing
    importing.py   installs all of it when a program imports torch or cuda-bindings
"""

from __future__ import annotations

from kiln.hardware import current

from . import importing


def activate() -> None:
    """Serve CUDA from host memory in this process from now on. Calling it again changes nothing."""
    importing.install()
    current.cuda_is_host_memory = True
