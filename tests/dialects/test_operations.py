"""Every operation of the dialects: its verifier, its expansions, its line in the docs, and that only its builder makes it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from operation_examples import ARGUMENTS, CONSTANTS, EXAMPLES

from kiln.base_dsl.compiler import Compilation
from kiln.base_dsl.diagnostics import CompilerDiagnosticError
from kiln.dialects import cute, docs, nvgpu
from kiln.dialects.definition import verify
from kiln.mlir import context, ir

ROOT = Path(__file__).parents[2]
OPERATIONS = {kind.OPERATION_NAME: kind for kind in (*cute.OPERATIONS, *nvgpu.OPERATIONS)}

NOT_EXPANDED = {
    ("cpu", "cute_nvgpu.driver_launch"): "made by the NVIDIA target, in place of cuda.launch_ex",
    ("cpu", "cute_nvgpu.hold_registers"): "made by the NVIDIA target, for LLVM",
    ("nvidia", "cute_nvgpu.driver_launch"): "of host functions: `targets/nvidia/launch.py` expands it there",
}
"""Operations without an expansion on a target, and why."""


_WAITS = "waits or orders memory"
_COPIES = "copies bytes"
_TELLS = "tells where a thread is, or the time"
_HINT = "changes no value"
_MAPS = "writes a tensor map, whose bits are the target's own"
_ALLOCATES = "allocates tensor memory"
NOT_DEFINED = {
    "barrier": _WAITS, "barrier_arrive": _WAITS, "sync_warp": _WAITS, "fence": _WAITS, "cluster_arrive": _WAITS,
    "cluster_wait": _WAITS, "nanosleep": _WAITS, "grid_dependency": _WAITS, "cp_async_commit": _WAITS, "cp_async_wait": _WAITS,
    "wgmma_fence": _WAITS, "wgmma_commit": _WAITS, "wgmma_wait": _WAITS,
    "cp_async_bulk_commit": _WAITS, "cp_async_bulk_wait": _WAITS, "cp_async": _COPIES, "bulk_load": _COPIES,
    "bulk_store": _COPIES, "bulk_send": _COPIES, "store_async": _COPIES, "bulk_prefetch": _HINT, "cache_policy": _HINT, "ordered_load": _COPIES, "ordered_store": _COPIES, "cluster_index": _TELLS, "clock": _TELLS,
    "tma_load": _COPIES, "tma_store": _COPIES, "tensor_map_publish": _COPIES, "tma_prefetch": _HINT, "tensor_map_prefetch": _HINT,
    "tensor_map_encode": _MAPS, "tensor_map_replace": _MAPS, "tensor_map_address": _TELLS, "tensor_map_release": _WAITS,
    "tensor_map_acquire": _WAITS, "dynamic_smem_size": _TELLS, "map_shared": _TELLS, "prefetch": _HINT, "warp_uniform": _HINT, "hold_registers": _HINT, "set_max_register": _HINT,
    "tcgen05_alloc": _ALLOCATES, "tcgen05_dealloc": _ALLOCATES, "tcgen05_relinquish_alloc_permit": _ALLOCATES,
    "tcgen05_commit": _WAITS, "tcgen05_wait": _WAITS, "tcgen05_fence": _WAITS,
    "clc_try_cancel": "asks the hardware for work", "clc_query_cancel": "reads an answer whose bits are the hardware's own",
    "elect_one": "chooses any lane", "driver_launch": "runs a kernel",
    "trace_mark": _TELLS, "trace_start": _TELLS, "trace_room": _TELLS, "trace_stop": _TELLS,
}  # fmt: skip
"""Operations of the hardware without a plain definition, and why."""


def verified(text: str) -> None:
    """Verify a function with one operation, as a compilation does."""
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in ARGUMENTS.items())
    constants = "\n".join(f"{name} = arith.constant {value} : i32" for name, value in CONSTANTS.items())
    source = f'func.func @f({arguments}) {{ {constants}\n {text} loc("kernel.py":12:5)\n func.return }}'
    with context():
        module = ir.Module.parse(source)
    Compilation(module, "f").verify(verify)


def test_every_operation_has_examples() -> None:
    assert set(EXAMPLES) == set(OPERATIONS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_right_and_wrong_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_VERIFY_PASSES", "1")  # also what there are thousands of
    right, wrong = EXAMPLES[name]
    assert f'"{name}"' in right
    verified(right)
    for text, words in wrong.items():
        assert f'"{name}"' in text
        with pytest.raises((CompilerDiagnosticError, ir.MLIRError)) as caught:
            verified(text)
        assert words in str(caught.value), text


def test_a_broken_rule_is_reported_at_the_line_of_the_program() -> None:
    with pytest.raises(CompilerDiagnosticError) as caught:
        verified('"cute_nvgpu.barrier"(%sixteen, %zero) : (i32, i32) -> ()')
    assert caught.value.span is not None
    assert (caught.value.span.filename, caught.value.span.line) == ("kernel.py", 12)
    assert "cute_nvgpu.barrier is of barrier 16" in str(caught.value)


@pytest.mark.parametrize("target", ["cpu", "nvidia"])
def test_every_operation_is_expanded_or_a_reason_is_given(target: str) -> None:
    handlers = handlers_of(target)
    for name in OPERATIONS:
        assert (name in handlers) != ((target, name) in NOT_EXPANDED), name
    own = {name for name in handlers if name.startswith(("cuda.", "cute.", "cute_nvgpu."))}
    assert own <= set(OPERATIONS)


def handlers_of(target: str) -> dict[str, object]:
    """The expansions of a target."""
    return importlib.import_module(f"kiln.targets.{target}.lower").HANDLERS


def test_every_operation_of_the_hardware_has_a_plain_definition_or_a_reason_why_not() -> None:
    for kind in nvgpu.OPERATIONS:
        name = kind.OPERATION_NAME.removeprefix("cute_nvgpu.")
        assert (docs.definition_of(name) != "") != (name in NOT_DEFINED), name


def test_operations_are_built_by_their_builders_alone() -> None:
    """Elsewhere no code names an operation of the dialects where it makes one."""
    making = re.compile(r"(?:\bemit|\bemit_value|\.create|\.value|\.op)\(\s*f?[\"'](?:cuda|cute|cute_nvgpu)\.")
    found = [
        f"{file.relative_to(ROOT)}: {match.group(0)}"
        for file in sorted((ROOT / "src").rglob("*.py"))
        if "dialects" not in file.relative_to(ROOT / "src").parts
        for match in making.finditer(file.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("kind", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_says_what_it_does_and_has_a_builder(kind: type) -> None:
    assert kind.__doc__
    source = Path(inspect.getfile(kind)).read_text()
    builder = kind.OPERATION_NAME.partition(".")[2]  # pyright: ignore[reportAttributeAccessIssue]
    declared = f"\n{builder}: Build = {kind.__name__}.build\n" in source
    built = declared or f'"{kind.OPERATION_NAME}"' in source or kind.OPERATION_NAME in (  # pyright: ignore[reportAttributeAccessIssue]
        "cute.thread_idx", "cute.block_idx", "cute.block_dim", "cute.grid_dim", "cute.lane_idx", "cute.warp_idx",  # `index`
    )  # fmt: skip
    assert built


def test_docs_are_current() -> None:
    page = ROOT / "docs" / "dialect.md"
    assert page.read_text() == docs.page(), "run: python -m kiln.dialects.docs"
    for name in OPERATIONS:
        assert f"### `{name}(" in page.read_text()
