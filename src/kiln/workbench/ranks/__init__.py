"""Programs for several GPUs, which torchrun starts, on simulated devices in one process (`kiln run --devices N`).

Each rank is a thread that runs the program in a `__main__` of its own and sees the environment of its rank. All ranks
share the memory of the process, so that one scheduler and one sanitizer see all devices.

    world.py               the ranks: which wait, which have ended, and how they meet
    environment.py         `os.environ` by rank
    output.py              lines of output by rank
    running.py             starts the ranks, and joins their exit statuses
    checked.py             tells the sanitizer what the host does
    host_accesses.py       accesses of torch to symmetric memory
    watch.py               finds deadlocks of several devices
    collectives.py         what the collectives of torch.distributed compute
    process_group.py       the process groups of torch.distributed
    heap.py                symmetric memory: the memory of each device, and multicast addresses
    symmetric_memory.py    `torch.distributed._symmetric_memory`
    symmetric_operators.py `torch.ops.symm_mem`
    nvshmem.py             `nvshmem.core`
    cuda_core.py           `cuda.core`
    packages.py            installs them where the packages are missing
"""
