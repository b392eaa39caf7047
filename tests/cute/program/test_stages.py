"""`cute.compile_to`: artefacts of each stage."""

from __future__ import annotations

import numpy as np
import pytest
from cutlass.compiler import ArtifactType, deserialize_compilation_artifact, serialize_compilation_artifact

import kiln.cute as cute
from kiln.base_dsl.diagnostics import DSLBaseError


@cute.kernel
def ones(x: cute.Tensor):
    x[cute.arch.thread_idx()[0]] = 1.0


@cute.jit
def fill(x: cute.Tensor):
    ones(x).launch(grid=[1, 1, 1], block=[4, 1, 1])


WORDS = {"PreCompiledMlir": "cuda.launch_ex", "LoweredMlir": "llvm.func @", "Llvm": "define"}


@pytest.mark.parametrize("stage", ArtifactType)
@pytest.mark.parametrize(("target", "options"), [("cpu", ""), ("nvidia", "--gpu-arch sm_90a")])
def test_each_stage(stage: ArtifactType, target: str, options: str) -> None:
    artifact = cute.compile_to(stage, fill, np.zeros(4, np.float32), options=options, target=target)
    assert (artifact.artifact_type, artifact.function_name, artifact.target) == (stage, "fill", target)
    if stage is ArtifactType.HostObject:
        assert artifact.content.startswith(b"\x7fELF")
        assert str(artifact) == repr(artifact)
    else:
        assert WORDS[stage.name] in str(artifact)
    assert deserialize_compilation_artifact(serialize_compilation_artifact(artifact)) == artifact


def test_attributes_of_compile() -> None:
    text = cute.compile.to_precompiled_mlir(fill, np.zeros(4, np.float32))
    assert text == str(cute.compile.compile_to(ArtifactType.PreCompiledMlir, fill, np.zeros(4, np.float32)))


def test_wrong_stages_and_bytes() -> None:
    with pytest.raises(DSLBaseError, match="got 'llvm' as the stage"):
        cute.compile_to("llvm", fill, np.zeros(4, np.float32))  # pyright: ignore
    with pytest.raises(DSLBaseError, match="these bytes are no artefact"):
        deserialize_compilation_artifact(b"define void @f()")
