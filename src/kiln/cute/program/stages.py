"""Artefacts of `cute.compile_to`: a function compiled up to a stage, to look at or to write to a file."""

from __future__ import annotations

import dataclasses
import enum
import json

from ...base_dsl.diagnostics import value_error

__all__ = ["ArtifactType", "CompilationArtifact", "deserialize_compilation_artifact", "serialize_compilation_artifact"]


class ArtifactType(enum.Enum):
    """A stage of compilation, with the name of what Kiln has then."""

    PreCompiledMlir = "mlir"
    LoweredMlir = "mlir_lowered"
    Llvm = "llvm"
    HostObject = "object"


@dataclasses.dataclass(frozen=True)
class CompilationArtifact:
    """What a compilation has after a stage: text, or the object code of the host with the GPU's inside.

    Args:
        artifact_type: the stage.
        function_name: the name of the compiled function.
        target: the target that it was compiled for, "cpu" or "nvidia".
        content: the text or the object code.
    """

    artifact_type: ArtifactType
    function_name: str
    target: str
    content: bytes

    def __str__(self) -> str:
        return repr(self) if self.artifact_type is ArtifactType.HostObject else self.content.decode()

    def __repr__(self) -> str:
        return f"<{self.artifact_type.name} of {self.function_name} for {self.target}, {len(self.content)} bytes>"


_FORMAT = "kiln-artifact-1"


def serialize_compilation_artifact(artifact: CompilationArtifact) -> bytes:
    """Return an artefact as bytes: a line of JSON that describes it, and its content.

    Args:
        artifact: the artefact.
    """
    head = [_FORMAT, artifact.artifact_type.name, artifact.function_name, artifact.target]
    return json.dumps(head).encode() + b"\n" + artifact.content


def deserialize_compilation_artifact(data: bytes) -> CompilationArtifact:
    """Return the artefact that `serialize_compilation_artifact` made bytes of.

    Args:
        data: the bytes.
    """
    head, _, content = data.partition(b"\n")
    if not head.startswith(json.dumps([_FORMAT])[:-1].encode()):
        raise value_error("these bytes are no artefact", "serialize_compilation_artifact makes them")
    _, stage, name, target = json.loads(head)
    return CompilationArtifact(ArtifactType[stage], name, target, content)
