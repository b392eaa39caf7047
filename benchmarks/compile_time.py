"""Compile time without the disk cache, in a new process and in one that has compiled before; CuTe DSL's beside it.

    python benchmarks/compile_time.py [--rounds N] [--only TEXT] [--states new,warm] [--cores N] [--beside M]
                                      [--public FOLDER] [--save]

Nothing is launched, so no GPU is needed: kernels are compiled for sm_90a. FOLDER is `examples/python/CuTeDSL` of a
checkout of NVIDIA's public repository; its programs for Ampere and Hopper are then compiled too, unchanged. Times are
the best of the rounds, in ms. "total" is what a caller waits for; ptxas runs beside the host code, and "ptxas" is how
long Kiln then waits for it. Byte code and the object code of native libraries are made first. A warm process has
compiled the f16 GEMM before other GEMMs, another attention kernel before attention, a row-wise kernel before the rest.
CuTe DSL's times were measured before, on a machine of the same kind (`CUTE_DSL`); it is not run here.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import json
import os
import platform
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import Page, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = {
    "tensorop_gemm": "ampere/kernel/dense_gemm/tensorop_gemm.py",
    "flash_attention_v2": "ampere/kernel/attention/flash_attention_v2.py",
    "dense_gemm_persistent": "hopper/kernel/dense_gemm/dense_gemm_persistent.py",
    "fmha": "hopper/kernel/attention/fmha.py",
}
CUTE_DSL = {
    "tensorop_gemm": "800 to 1400",
    "flash_attention_v2": "4000 to 5300",
    "dense_gemm_persistent": "1100 to 1600",
    "fmha": "2200 to 3100",
}
"""Milliseconds that CuTe DSL took for the public programs."""
TIMES = Table(
    "Milliseconds without the disk cache, for sm_90a",
    ("kernel", "state", "total", "tracing", "lowering", "LLVM passes", "PTX", "ptxas", "host code", "CuTe DSL total"),
)
PAGE = Page(__file__, "Compile time", TIMES)
ROOT = Path(__file__).resolve().parents[1]
HOPPER = ROOT / "examples/hopper/step_6_persistent.py"
GEMMS = (
    "gemm gelu",
    "gemm residual",
    "gemm gate",
    "gemm two outputs",
    "gemm row reduction",
    "gemm e4m3",
    "gemm e4m3 fast",
    "gemm e4m3 block scales",
    "gemm int8",
    "gemm tf32",
    "gemm int8 weights",
    "gemm int4 weights",
    "gemm grouped",
)
ATTENTION = {
    "attention full": (128, {}),
    "attention causal": (128, {"causal": True}),
    "attention head_dim 64": (64, {"causal": True}),
    "attention head_dim 256": (256, {"causal": True}),
    "attention window": (128, {"window": (500, 0), "softcap": 30.0}),
    "attention score_mod": (128, {"causal": True, "score": lambda s, b, h, q, k: s + 0.1 * h}),
    "attention varlen": (128, {"causal": True, "varlen": True}),
    "attention paged KV": (128, {"causal": True, "page": 16}),
    "attention e4m3": (128, {"causal": True, "narrow": True}),
    "attention e4m3 head_dim 256": (256, {"causal": True, "narrow": True}),
}
"""Attention forward on sm_90a: head_dim and options."""
BACKWARD = {
    "attention backward full": (128, False),
    "attention backward causal": (128, True),
    "attention backward head_dim 64": (64, True),
    "attention backward head_dim 192": (192, True),
    "attention backward head_dim 256": (256, True),
}
"""Attention backward on sm_90a: head_dim, and whether it is causal."""
MLA = {"mla 128 heads": (128, "bfloat16"), "mla 16 heads": (16, "bfloat16"), "mla e4m3": (128, "float8_e4m3fn")}
"""MLA decode of one token: heads, and the dtype of the KV cache."""
OWN = ("elementwise", "softmax", "gemm", *GEMMS, "hopper_gemm", *ATTENTION, *BACKWARD, *MLA)
STAGES = {
    "lowering": (
        "kernel-outlining",
        "verify",
        "fma-contraction",
        "narrow-floats",
        "wgmma-unrolling",
        "wgmma-registers",
        "vector-legalisation",
        "if-conversion",
        "expansion",
        "loop-unrolling",
        "llvm-conversion",
        "translate",
        "check",
        "loop-annotations",
        "kernel-attributes",
        "lines",
    ),
    "LLVM passes": ("optimize",),
    "PTX": ("codegen",),
    "ptxas": ("ptxas",),
}
"""Columns of the table, with the stages that each adds up; the rest of a compilation is host code."""


def array(dtype: str, *shape: int) -> Any:
    """Return an uninitialised array: nothing reads it."""
    import ml_dtypes
    import numpy as np

    return np.empty(shape, getattr(ml_dtypes, dtype, None) or np.dtype(dtype))


def attention(dim: int, varlen: bool = False, page: int = 0, narrow: bool = False, **options: Any) -> Any:
    """Return a call of attention with the config of batch 4, seqlen 8192."""
    import numpy as np

    import kiln
    from kiln import kernels
    from kiln.kernels.dispatch.devices import device_of
    from kiln.kernels.impl.attention import AttentionProblem
    from kiln.kernels.impl.attention.fwd import sm90_cost

    q = k = array("float8_e4m3fn" if narrow else "bfloat16", 1, 256, 2, dim)
    starts = np.array([0, 256], np.int32)
    if varlen:
        q, k, options = q[0], k[0], {**options, "cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 256}
    if page:
        table = np.zeros((1, 256 // page), np.int32)
        k, options = k.reshape(-1, page, 2, dim), {**options, "page_table": table, "seqused_k": starts[1:]}
    problem = AttentionProblem(
        4,
        8192,
        8192,
        16,
        16,
        dim,
        dim,
        kiln.Float8E4M3FN if narrow else kiln.BFloat16,
        window_right=0 if options else None,
        page_size=page,
        varlen=varlen,
        has_seqused_k=page > 0,
        score_mod=options.get("score"),
    )
    config = sm90_cost.default_config(problem, device_of("sm_90a"))
    return lambda: kernels.flash_attention(q, k, k, config=config, **options)


def attention_backward(dim: int, causal: bool) -> Any:
    """Return a call of attention backward at seqlen 8192."""
    import numpy as np

    from kiln import kernels

    x = np.broadcast_to(array("bfloat16", 1, 1, 1, dim), (4, 8192, 16, dim))
    grads = [array("bfloat16", *x.shape) for _ in range(3)]
    lse = array("float32", 4, 16, 8192)
    return lambda: kernels.flash_attention_backward(
        x, x, x, x, x, lse, causal=causal, dq=grads[0], dk=grads[1], dv=grads[2]
    )


def mla(heads: int, stored: str) -> Any:
    """Return a call of MLA decode for 128 sequences."""
    from kiln import kernels

    q, cache, table = array("bfloat16", 128, 1, heads, 576), array(stored, 8192, 64, 576), array("int32", 128, 64)
    return lambda: kernels.mla_decode(q, cache, table, array("int32", 128))


def program_at(path: Path) -> Any:
    """Import a program by its path."""
    import importlib.util

    for place in (path.parent, *path.parents[1:6]):
        sys.path.append(str(place))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def dynamic(x: Any, leading: int, order: tuple[int, ...], width: int) -> Any:
    """Return a tensor as the public programs prepare theirs."""
    from kiln.cute.runtime import from_dlpack

    made = from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=leading)
    return made.mark_compact_shape_dynamic(mode=leading, stride_order=order, divisibility=width)


def public(name: str, program: Any) -> Any:
    """Return a call that compiles a program of the public repository."""
    import kiln.cute as cute
    from kiln.cute.runtime import from_dlpack

    stream = program.cuda.CUstream(0)
    if name == "tensorop_gemm":
        size, dtype = 1024, program.cutlass.Float16
        a = dynamic(array("float16", 1, size, size).transpose(0, 2, 1), 1, (0, 2, 1), 8)
        b, c = (dynamic(array("float16", 1, size, size), 2, (0, 1, 2), 8) for _ in range(2))
        layout = (2, 2, 1)
        return lambda: program.compile_bmm(
            (size, size, size, 1), a, b, c, dtype, dtype, program.cutlass.Float32, layout
        )
    if name == "flash_attention_v2":
        tensors = [dynamic(array("bfloat16", 1, 256, 1, 128), 3, (0, 1, 2, 3), 8) for _ in range(4)]
        kernel = program.FlashAttentionForwardAmpere(128, 128, 64, 128, True)
        return lambda: cute.compile(kernel, *tensors, 0.125, stream)
    f32 = program.cutlass.Float32
    if name == "dense_gemm_persistent":
        whole = [array("float16", 1, 256, 256).transpose(1, 2, 0) for _ in range(3)]
        tensors = [from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in whole]
        kernel = program.HopperWgmmaGemmPersistentKernel(f32, (128, 256), (2, 1), 8, True)
        return lambda: cute.compile(kernel, *tensors, 66, stream)
    heads = [array("float16", 1, 256, 2, 1, 128) for _ in range(4)] + [array("float32", 1, 256, 2, 1, 1)]
    tensors = [
        from_dlpack(x.transpose(1, 4, 3, 2, 0), assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in heads
    ]
    mask = program.fmha_utils.MaskEnum.WINDOW_MASK
    kernel = program.HopperFusedMultiHeadAttentionForward(f32, f32, (64, 128, 128), False, mask)
    return lambda: cute.compile(kernel, *tensors, 1.0, 1.0, 1.0, None, None, stream)


def prepared(name: str, folder: str) -> Any:
    """Return a call that compiles a kernel; its arguments are ready."""
    import kiln.cute as cute
    from kiln import kernels
    from kiln.cute.runtime import from_dlpack

    if name in PUBLIC:
        return public(name, program_at(Path(folder) / "cute" / PUBLIC[name]))
    if name == "hopper_gemm":
        program = program_at(HOPPER)
        a, b, c = (from_dlpack(array("float16", 256, 256), assumed_align=16).mark_layout_dynamic() for _ in range(3))
        return lambda: cute.compile(program.gemm, a, b, c, cute.Int32(66))
    if name in GEMMS:
        return gemm(name)
    if name in ATTENTION:
        return attention(ATTENTION[name][0], **ATTENTION[name][1])
    if name in BACKWARD:
        return attention_backward(*BACKWARD[name])
    if name in MLA:
        return mla(*MLA[name])
    x = array("float32", 64, 64)
    a, b = array("float16", 8192, 64), array("float16", 64, 8192)
    return {
        "elementwise": lambda: kernels.elementwise(lambda u, v: u + v, x, x),
        "softmax": lambda: kernels.softmax(array("bfloat16", 4, 8192)),
        "gemm": lambda: kernels.gemm(a, b),
    }[name]


def gemm(name: str, n: int = 8192, k: int = 256) -> Any:
    """Return a call that compiles a variant of GEMM."""
    import kiln.cute as cute
    from kiln import kernels

    def of(dtype: str, **options: Any) -> Any:
        return lambda: kernels.gemm(array(dtype, n, k), array(dtype, n, k).T, **options)

    def weights(bits: int) -> Any:
        rows = k * bits // 8
        return lambda: kernels.gemm(array("bfloat16", 16, k), array("int8", n, rows).T, scale_b=array("float32", n))

    bf16, like = {"out_dtype": array("bfloat16", 1).dtype}, array("bfloat16", n, n)
    makers = {
        "gemm gelu": lambda: of("bfloat16", bias=like[0], activation="gelu"),
        "gemm residual": lambda: of("bfloat16", c=like),
        "gemm gate": lambda: of("bfloat16", epilogue=lambda value, gate: value * gate, extras=[like]),
        "gemm two outputs": lambda: of(
            "bfloat16", epilogue=lambda value: (value, cute.where(value > 0.0, value, cute.full_like(value, 0.0)))
        ),
        "gemm row reduction": lambda: of("bfloat16", row_reduction="squares"),
        "gemm e4m3": lambda: of("float8_e4m3fn", **bf16),
        "gemm e4m3 fast": lambda: of("float8_e4m3fn", precision="fast", **bf16),
        "gemm e4m3 block scales": lambda: of(
            "float8_e4m3fn", scale_a=array("float32", n, k // 128), scale_b=array("float32", k // 128, n // 128), **bf16
        ),
        "gemm int8": lambda: of("int8"),
        "gemm tf32": lambda: of("float32", precision="tf32"),
        "gemm int8 weights": lambda: weights(8),
        "gemm int4 weights": lambda: weights(4),
        "gemm grouped": lambda: (
            lambda: kernels.grouped_gemm(
                array("bfloat16", n, k), array("bfloat16", 64, n, k).transpose(0, 2, 1), offsets=array("int32", 64)
            )
        ),
    }
    return makers[name]()


def before(name: str) -> str:
    """Return what a warm process has compiled before a program."""
    found = {"softmax": "elementwise"} | dict.fromkeys(GEMMS, "gemm")
    for kind in (ATTENTION, BACKWARD, MLA):
        first, second, *_ = kind
        found |= {x: second if x == first else first for x in kind}
    return found.get(name, "softmax")


def child(name: str, warm: bool, folder: str) -> None:
    """Compile one program and print what it took, stage by stage."""
    from kiln.targets.nvidia.target import NvidiaTarget
    from kiln.testing import dry_run

    report: dict[str, Any] = {}
    original = NvidiaTarget.compile

    def compile_(*args: Any) -> Any:
        start = time.perf_counter()
        made = original(*args)
        spent = {**made.timings, "compile": time.perf_counter() - start}
        report.update({stage: report.get(stage, 0.0) + seconds for stage, seconds in spent.items()})
        return made

    NvidiaTarget.compile = compile_  # pyright: ignore[reportAttributeAccessIssue]
    with dry_run("sm_90a"):
        os.environ["CUTE_DSL_LINEINFO"] = "0"  # as in programs that do not ask for it: a dry run does
        if warm:
            prepared(before(name), "")()
        run = prepared(name, folder)
        report.clear()
        start = time.perf_counter()
        run()
        report["all"] = time.perf_counter() - start
    print(json.dumps(report))


def columns(report: dict[str, float]) -> dict[str, float]:
    """Return seconds by column of the table."""
    found = {"total": report["all"], "tracing": report["all"] - report["compile"]}
    found |= {name: sum(report.get(stage, 0.0) for stage in stages) for name, stages in STAGES.items()}
    found["host code"] = report["compile"] - sum(found[name] for name in STAGES)
    return found


def installed() -> dict[str, str]:
    """Make what packages carry beside the sources; the environment of processes that use it."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    compileall.compile_dir(ROOT / "src", quiet=2, workers=0)
    subprocess.run(
        [sys.executable, ROOT / "tools/native_objects.py", "--here"], env=environment, capture_output=True, check=True
    )
    return environment


def measured(names: list[str], given: argparse.Namespace) -> Iterator[tuple[tuple[str, str], dict[str, float]]]:
    """Yield program and state with the best of the rounds; programs run beside each other, each on cores of its own."""
    # a GPU would be asked how many clusters it has room for, which begins with making a context
    environment = {**installed(), "CUTE_DSL_DISABLE_FILE_CACHING": "1", "CUDA_VISIBLE_DEVICES": ""}
    free: queue.Queue[list[int]] = queue.Queue()
    here = sorted(os.sched_getaffinity(0))
    apart = max(len(here) // given.beside, 1)  # neighbours may be one core for two
    for number in range(given.beside):
        free.put(here[number * apart : number * apart + (given.cores or apart)])

    def one(work: tuple[str, str]) -> dict[str, float]:
        cores = free.get()
        options = ["--public", given.public, "--on", ",".join(map(str, cores)), "--child", *work]
        found: list[dict[str, float]] = []
        try:
            for _ in range(given.rounds):  # a fork of one process would have no driver
                done = subprocess.run(
                    [sys.executable, __file__, *options], env=environment, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise RuntimeError(f"{work[0]}: {done.stderr}")
                found.append(columns(json.loads(done.stdout.splitlines()[-1])))
        finally:
            free.put(cores)
        return min(found, key=lambda x: x["total"])

    todo = [(name, state) for name in names for state in given.states]
    with concurrent.futures.ThreadPoolExecutor(given.beside) as pool:
        yield from zip(todo, pool.map(one, todo), strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="programs of these names, or those whose names contain one, separated by commas"
    )
    parser.add_argument("--states", type=lambda text: text.split(","), default=["new", "warm"])
    parser.add_argument("--cores", type=int, default=0, help="how many cores a program has; all by default")
    parser.add_argument("--beside", type=int, default=1, help="how many programs run beside each other")
    parser.add_argument("--public", default="", help="examples/python/CuTeDSL of a checkout of the public repository")
    parser.add_argument("--save", action="store_true", help="write docs/data/compile_time.md")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--on", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        os.sched_setaffinity(0, map(int, given.on.split(",")))
        child(given.child[0], given.child[1] == "warm", given.public)
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}; ms")
    names = OWN + (tuple(PUBLIC) if given.public else ())
    wanted = given.only.split(",")
    chosen = [name for name in names if name in wanted] or [name for name in names if any(x in name for x in wanted)]
    for (name, state), spent in measured(chosen, given):
        TIMES.add(name, state, *(f"{1e3 * seconds:.0f}" for seconds in spent.values()), CUTE_DSL.get(name))
    PAGE.finish(given.save)


if __name__ == "__main__":
    main()
