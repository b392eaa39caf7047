"""The steps of the GEMM as one contract, to compare them: `kiln profile examples/hopper/steps.py --step 4 --html step_4.html`."""

import step_2_gemm
import step_3_pipeline
import step_4_roles
import step_5_stores
import step_6_persistent
import torch

STEPS = {
    2: step_2_gemm.gemm,
    3: step_3_pipeline.gemm,
    4: step_4_roles.gemm,
    5: step_5_stores.gemm,
    6: lambda a, b, c: step_6_persistent.gemm(a, b, c, 66),
}
arch = "sm_90a"
problems = [{"step": step, "n": 1024} for step in STEPS]


def get_inputs(step, n):
    a, b = (torch.randn(n, n, dtype=torch.float16, device="cuda") for _ in range(2))
    return [a, b, step]


def kernel_fn(a, b, step):
    c = torch.empty(a.shape[0], b.shape[0], dtype=a.dtype, device=a.device)
    STEPS[step](a, b, c)
    return c


def reference_fn(a, b, step):
    return (a.float() @ b.float().T).half()


def flops_bytes(step, n):
    return 2 * n**3, 3 * n**2 * 2
