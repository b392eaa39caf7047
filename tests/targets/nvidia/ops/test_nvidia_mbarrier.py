"""Arrivals at mbarriers of other blocks: what they publish, and what that costs."""

from __future__ import annotations

from nvidia_testing import compile_for, floats, needs_nvdisasm

from kiln import cute
from kiln.cute import arch
from kiln.pipeline.arrivals import ThreadArrival
from kiln.pipeline.asynchronous import PipelineAsync, PipelineTmaAsync


@needs_nvdisasm
def test_who_only_read_a_buffer_of_another_block_publishes_nothing():
    """A release for the cluster waits for all writes to be known to the GPU: too long for the end of a turn of a main loop."""

    def code(arrival):
        @cute.kernel
        def kernel(_x: cute.Tensor):
            barrier = arch.alloc_smem(cute.Int64, 1)
            arrival.arrive(barrier, 1)

        @cute.jit
        def launch(x: cute.Tensor):
            kernel(x).launch(grid=2, block=128, cluster=(2, 1, 1))

        artifacts = compile_for(launch, floats(4)).executable.artifacts
        return artifacts["ptx"], artifacts["sass"]

    for pipeline in (PipelineAsync, PipelineTmaAsync):
        ptx, sass = code(pipeline._CONSUMER)
        assert "mbarrier.arrive.release.cta.shared::cluster.b64" in ptx and "MEMBAR" not in sass
    ptx, sass = code(ThreadArrival())
    assert "mbarrier.arrive.release.cluster.shared::cluster.b64" in ptx and "MEMBAR" in sass
