"""Programs with random signatures, which every bridge calls."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 16
ELEMENTS = ("float32", "float16", "float64", "int8", "int32", "uint8", "int64")
NUMBERS = {"Float32": "float", "Float64": "float", "Int32": "int", "Int64": "int", "Boolean": "bool"}
_HEAD = """import kiln.cute as cute
from kiln import Boolean, Float32, Float64, Int32, Int64

"""


@dataclasses.dataclass(frozen=True)
class Signature:
    """Parameters in order: tensors as (element type, shape), numbers as the name of their type."""

    parameters: tuple[Any, ...]

    @property
    def tensors(self) -> list[int]:
        return [place for place, p in enumerate(self.parameters) if isinstance(p, tuple)]

    def source(self) -> str:
        """A kernel whose result depends on all arguments, and the jit functions that launch it, for JAX and for others."""
        names = [f"p{place}" for place in range(len(self.parameters))]
        lines = ["    total = Float32(0.0)"]
        for name, kind in zip(names, self.parameters):
            if isinstance(kind, tuple):
                index = ", ".join(f"(i * {2 * mode + 3}) % {name}.shape[{mode}]" for mode in range(len(kind[1])))
                lines.append(f"    total = total * Float32(1.25) + {name}[{index}].to(Float32)")
            else:
                lines.append(f"    total = total * Float32(0.75) + {name}.to(Float32)")
        declared = [f"{n}: {'cute.Tensor' if isinstance(k, tuple) else k}" for n, k in zip(names, self.parameters)]
        arrays = [declared[place] for place in self.tensors]
        rest = [text for place, text in enumerate(declared) if place not in self.tensors]
        keywords = ", *, " + ", ".join(rest) if rest else ""
        launch = f"digest({', '.join(names)}, out).launch(grid=1, block={THREADS}"
        return _HEAD + "\n".join(
            [
                "@cute.kernel",
                f"def digest({', '.join(declared)}, out: cute.Tensor):",
                "    i, _, _ = cute.arch.thread_idx()",
                *lines,
                "    out[i] = total",
                "",
                "@cute.jit",
                f"def plain({', '.join(declared)}, out: cute.Tensor):",
                f"    {launch})",
                "",
                "@cute.jit",
                f"def for_jax(stream, {', '.join(arrays)}, out: cute.Tensor{keywords}):",
                f"    {launch}, stream=stream)",
                "",
            ]
        )

    def load(self, folder: Path, name: str) -> Any:
        """The program as a module: functions are found by their source."""
        path = folder / f"{name}.py"
        path.write_text(self.source())
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def arguments(self, random: random.Random) -> list[Any]:
        """Arguments of a call: arrays of numpy, numbers of Python."""
        numpy = np.random.default_rng(random.randrange(1 << 30))
        made: list[Any] = []
        for kind in self.parameters:
            if isinstance(kind, tuple):
                made.append(numpy.integers(0, 100, kind[1]).astype(kind[0]))
            elif NUMBERS[kind] == "bool":
                made.append(random.random() < 0.5)
            else:
                made.append(random.randint(-100, 100) if NUMBERS[kind] == "int" else random.uniform(-100, 100))
        return made


def random_signature(random: random.Random) -> Signature:
    """One to three tensors and up to three numbers, in any order."""
    kinds: list[Any] = [
        (random.choice(ELEMENTS), tuple(random.randint(1, 9) for _ in range(random.randint(1, 3))))
        for _ in range(random.randint(1, 3))
    ]
    kinds += [random.choice(list(NUMBERS)) for _ in range(random.randint(0, 3))]
    random.shuffle(kinds)
    return Signature(tuple(kinds))


def spoiled(arguments: list[Any], random: random.Random) -> list[Any]:
    """The arguments of a call, one or two of them made wrong, or left out, or one more."""
    made = list(arguments)
    for _ in range(random.randint(1, 2)):
        place = random.randrange(len(made)) if made else 0
        if not made or random.random() < 0.1:
            made.append(3)
        elif random.random() < 0.1:
            del made[place]
        else:
            made[place] = random.choice(_WRONG)(made[place])
    return made


def _as_array(x: Any) -> np.ndarray:
    return np.asarray(x)


def _frozen(x: Any) -> np.ndarray:
    x = np.array(x)
    x.flags.writeable = False
    return x


_WRONG = [
    lambda x: None, lambda x: 7, lambda x: 2.5, lambda x: "text", lambda x: 1 << 63, lambda x: -1 << 200, lambda x: object(), lambda x: [x], lambda x: (x, x),
    lambda x: float("nan"), lambda x: 1e300, lambda x: True, lambda x: np.float32(1), lambda x: complex(1, 2), lambda x: type, lambda x: b"bytes", lambda x: {},
    lambda x: _as_array(x)[None], lambda x: _as_array(x).reshape(-1)[:1], lambda x: _as_array(x).reshape(-1)[:0], lambda x: _frozen(x), lambda x: np.zeros((3, 0)),
    lambda x: _as_array(x).T, lambda x: np.zeros(4, ">f4"), lambda x: np.zeros(3, np.complex64), lambda x: np.zeros(3, object), lambda x: np.zeros((2,) * 12),
    lambda x: np.broadcast_to(np.zeros(1, np.float32), (5,)), lambda x: np.zeros(8, np.float32)[::-1], lambda x: np.zeros(9, np.uint8)[1:].view(np.float32),
]  # fmt: skip
