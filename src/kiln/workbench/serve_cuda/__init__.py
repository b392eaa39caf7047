"""CUDA without a GPU: what programs ask of torch's `cuda` device and of cuda-bindings, served from host memory.

For programs run by `kiln run --target cpu`, in their child processes too. `activate()` imports neither torch nor
cuda-bindings: it waits for the program to do so.

    device.py      the GPU that programs are told they have
    tensors.py     torch tensors "on cuda": CPU tensors with a mark
    callbacks.py   Python that torch calls back: backward functions, kernels of operators, compiled functions
    products.py    products of matrices of halves, rounded once as a GPU does
    generators.py  their random numbers
    torch_cuda.py  `torch.cuda`
    streams.py     streams and events
    graphs.py      CUDA graphs: work is recorded and run again
    memory.py      allocations made through cuda-bindings
    bindings.py    `cuda.bindings.driver` and `cuda.bindings.runtime`, and in types.py what they are without the package
    importing.py   how all this gets in place
"""

from __future__ import annotations


def activate() -> None:
    """Serve CUDA from host memory in this process from now on. Calling it again changes nothing."""
    from kiln.hardware import current

    from . import importing

    importing.install()
    current.cuda_is_host_memory = True
