"""Compare which implementation and config two revisions choose: `make choices BASE=main`, or

    python tools/replay/choices.py                   # the working tree against HEAD
    python tools/replay/choices.py main~3 --only gemm
    python tools/replay/choices.py --alone           # the working tree: what its choices lose to the best measured configs

Problems are those of the recorded measurements (`benchmarks/data`) and the calls of the replay corpus, for sm_90a. Where a choice
differs, the recorded times say what that costs. Then, by family, the loss against the best measured config of each problem: geometric
mean, worst problems, and choices that were never measured; of GEMM also how fast choices are beside cuBLAS. Renamed classes and fields are read through `config_names.RENAMED`. It
exits with 1 if a choice differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "benchmarks"))

import gemm_shapes  # noqa: E402  # pyright: ignore[reportMissingImports]
import recorded  # noqa: E402  # pyright: ignore[reportMissingImports]

TARGET, DEVICE = "sm_90a", "H200"
WORST = 5
"""Problems of a family that are listed by their loss."""
BEHIND = 0.97
"""GEMMs that are slower than this, relative to cuBLAS, are counted."""


# --- in a process of one revision: what is chosen ----------------------------------------------------------------------


class Recorder:
    """Stands for `kiln.kernels` in the modules of the corpus: functions are explained instead of called."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.explained: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._kernels, name)
        if not hasattr(function, "__wrapped__"):
            return function

        def explained(*arguments: Any, **options: Any) -> Any:
            self.explained.append(self._kernels.explain(function, *arguments, **options))
            raise StopIteration  # the rest of the case is not run

        explained.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return explained


def recorded_calls() -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """Yield (family, problem, call of `kiln.kernels`) for each recorded problem."""
    from library_variants import BF16, E4M3, F16, F32, array, np

    for shape in [*gemm_shapes.layers(), *gemm_shapes.others()]:
        dtype = {"float16": F16, "float8_e4m3fn": E4M3}.get(shape.dtype, BF16)
        a = array(dtype, shape.m, shape.k) if shape.layout[0] == "N" else array(dtype, shape.k, shape.m).T
        b = array(dtype, shape.k, shape.n) if shape.layout[1] == "N" else array(dtype, shape.n, shape.k).T
        out = np.empty((shape.m, shape.n), BF16 if dtype is E4M3 else dtype)
        yield "gemm", shape.name, lambda kernels, a=a, b=b, out=out: kernels.gemm(a, b, out=out)
    for name in recorded.attention():
        bits, batch, length, heads, kv_heads, dims, causal = json.loads(name)
        dim, dim_v = (dims, dims) if isinstance(dims, int) else dims
        dtype = F16 if bits == 16 else E4M3
        arrays = [array(dtype, batch, length, h, d) for h, d in ((heads, dim), (kv_heads, dim), (kv_heads, dim_v))]
        yield "attention", name, lambda k, arrays=arrays, causal=causal: k.flash_attention(*arrays, causal=causal)
    shapes = recorded.tables()
    for name in shapes["decode"]:
        kind, page, batch, queries, keys = json.loads(name)
        dtype = BF16 if kind == "bf16" else E4M3
        q = array(BF16 if page else dtype, batch, queries, 32, 128)
        out = np.empty((batch, queries, 32, 128), BF16)
        if page:
            cache = array(dtype, batch * keys // page, page, 8, 128)
            table, lengths = array(np.int32, batch, keys // page), array(np.int32, batch)
            arrays = (q, cache, cache, table, lengths)
            yield "attention decode", name, lambda k, arrays=arrays, out=out: k.paged_attention(*arrays, out=out)
        else:
            k, v = (array(dtype, batch, keys, 8, 128) for _ in range(2))
            arrays = (q, k, v)
            yield (
                "attention decode",
                name,
                lambda k, arrays=arrays, out=out: k.flash_attention(*arrays, causal=True, out=out),
            )
    for name in shapes["mla"]:
        bits, batch, tokens, heads, keys = json.loads(name)
        cache = array(BF16 if bits == 16 else E4M3, batch * keys // 64, 64, 576)
        arrays = (
            array(BF16, batch, tokens, heads, 576),
            cache,
            array(np.int32, batch, keys // 64),
            array(np.int32, batch),
        )
        yield "mla", name, lambda k, arrays=arrays: k.mla_decode(*arrays, causal=False)
    for name in shapes["backward"]:
        dim, dim_v, batch, length, heads, causal = json.loads(name)
        q, out = array(BF16, batch, length, heads, dim), array(BF16, batch, length, heads, dim_v)
        arrays = (out, q, q, out, out, array(F32, batch, heads, length))
        yield (
            "attention backward",
            name,
            lambda k, arrays=arrays, causal=causal: k.flash_attention_backward(*arrays, causal=causal),
        )


def stand_in_h200() -> None:
    """Let an H200, which measurements were made on, stand for its architecture."""
    from kiln.hardware import devices

    known = devices.models

    def models(*arguments: Any) -> dict[str, Any]:
        return dict(sorted(known(*arguments).items(), key=lambda row: row[0] != DEVICE))

    devices.models = models  # type: ignore[assignment]
    assert devices.device_of(TARGET).name == DEVICE


def choices() -> dict[str, dict[str, Any]]:
    """Return what the Kiln on `PYTHONPATH` chooses, by family and problem."""
    import library_calls
    import library_variants

    from kiln import kernels
    from kiln.testing import dry_run

    stand_in_h200()
    found: dict[str, dict[str, Any]] = {}

    def note(family: str, problem: str, call: Callable[[Recorder], Any]) -> None:
        recorder = Recorder(kernels)
        try:
            call(recorder)
        except StopIteration:
            pass
        except Exception as refused:
            found.setdefault(family, {})[problem] = {"error": f"{type(refused).__name__}: {refused}"[:300]}
            return
        if recorder.explained:
            first = recorder.explained[0].choices[0]
            implementation, config = first[0], first[1]
            values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
            entry = {"implementation": type(implementation).__name__, "class": type(config).__name__, "fields": values}
            found.setdefault(family, {})[problem] = entry

    with dry_run(TARGET):
        for family, problem, call in recorded_calls():
            note(family, problem, call)
        for module, cases in ((library_calls, library_calls.SHIPPED), (library_variants, library_variants.VARIANTS)):
            for name, case in cases.items():

                def replaced(recorder: Recorder, module: Any = module, case: Any = case) -> Any:
                    module.kernels = recorder
                    try:
                        return case()
                    finally:
                        module.kernels = kernels

                note("corpus", f"library/{name}" if module is library_calls else name, replaced)
    return found


# --- comparing -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A choice: the implementation, and the config under the names of the recorded measurements."""

    implementation: str
    kind: str
    fields: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.fields)})"

    def key(self, family: str) -> recorded.Config:
        """Return the config as the measurements of a family name it."""
        values = dict(self.fields)
        if self.kind not in recorded.FIELDS:
            return recorded.Config(self.kind, tuple(values.values()))
        names = recorded.fields_of(family, self.kind)
        return recorded.Config(self.kind, tuple(values.get(name, _DEFAULTS.get(name)) for name in names))


_DEFAULTS = {
    "persistent": True,
    "lazy_rescale": True,
    "pack_gqa": False,
    "dynamic_scheduler": False,
    "transpose_out": False,
    "epi_stages": 2,
}
"""Of fields that measurements have and a config no longer has: what the others were measured with."""


def chosen(entry: dict[str, Any]) -> Chosen | str:
    """Return a choice that a process wrote down; or why there is none."""
    from config_names import recorded_name

    if "error" in entry:
        return entry["error"]
    kind, fields = recorded_name(entry["class"], entry["fields"], recorded.FIELDS)
    return Chosen(entry["implementation"], kind, tuple((name, _frozen(value)) for name, value in fields.items()))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def print_differences(before: Any, after: Any, measured: Any, only: re.Pattern[str]) -> int:
    """Print problems whose choices differ, with the cost by the recorded times; return how many do."""
    count, renamed, ratios = 0, {}, []
    for family in before:
        for problem, entry in before[family].items():
            if problem not in after.get(family, {}) or not only.search(f"{family}/{problem}"):
                continue
            old, new = chosen(entry), chosen(after[family][problem])
            if isinstance(old, str) or isinstance(new, str):
                if isinstance(old, str) != isinstance(new, str):
                    count += 1
                    print(f"{family} {problem}: {old} -> {new}")
                continue
            if old.implementation != new.implementation:
                renamed.setdefault((old.implementation, new.implementation), []).append(problem)
            if (old.kind, old.fields) == (new.kind, new.fields):
                continue
            times = measured.get(family, {}).get(problem)
            us = [times.times.get(x.key(family)) if times else None for x in (old, new)]
            cost = "not measured"
            if us[0] and us[1]:
                ratios.append(us[1] / us[0])
                cost = f"{us[0]:.1f} -> {us[1]:.1f} us, {us[1] / us[0] - 1:+.1%}"
            count += 1
            print(f"{family} {problem}: {old} -> {new}: {cost}")
    for (old_name, new_name), problems in renamed.items():
        print(f"implementation {old_name} -> {new_name}: {len(problems)} problems (a rename, if configs are equal)")
    if ratios:
        mean = recorded.geometric_mean(ratios)
        print(f"{len(ratios)} measured differences: geometric mean {mean - 1:+.2%}, worst {max(ratios) - 1:+.1%}")
    print(f"{count or 'no'} choices differ")
    return count


def print_losses(found: Any, measured: Any, only: re.Pattern[str]) -> None:
    """Print what choices lose to the best measured configs."""
    for family, problems in measured.items():
        losses: dict[str, float] = {}
        unmeasured: list[str] = []
        for problem, times in problems.items():
            entry = found.get(family, {}).get(problem)
            if entry is None or not only.search(f"{family}/{problem}"):
                continue
            choice = chosen(entry)
            us = None if isinstance(choice, str) else times.times.get(choice.key(family))
            if us is None:
                unmeasured.append(f"{problem}: {choice}")
            else:
                losses[problem] = us / times.best
        if not losses:
            continue
        mean = recorded.geometric_mean(list(losses.values()))
        print(f"{family}: {len(losses)} problems, loss {mean - 1:.2%} (geometric mean), {len(unmeasured)} not measured")
        for problem in sorted(losses, key=lambda x: -losses[x])[:WORST]:
            print(f"    {losses[problem] - 1:.1%}  {problem}")
        if family == "gemm":
            print_beside_cublas(
                {problem: problems[problem].peer / problems[problem].best / x for problem, x in losses.items()}
            )
        for line in unmeasured[:WORST]:
            print(f"    not measured: {line}")


def print_beside_cublas(ratios: dict[str, float]) -> None:
    """Print how fast the choices are, relative to cuBLAS, in and out of the fit."""
    layers = gemm_shapes.layers()
    kinds = {
        "layers in the fit": [shape.name for shape in layers if not shape.held_out],
        "layers held out": [shape.name for shape in layers if shape.held_out],
        "other GEMMs": [shape.name for shape in gemm_shapes.others()],
    }
    for title, names in kinds.items():
        if own := {name: ratios[name] for name in names if name in ratios}:
            mean, least = recorded.geometric_mean(list(own.values())), min(own, key=own.__getitem__)
            behind = sum(ratio < BEHIND for ratio in own.values())
            print(
                f"    {title}: {mean:.3f} of cuBLAS, {behind} of {len(own)} below {BEHIND}, least {own[least]:.2f} of {least}"
            )


def of_tree(tree: Any, cache: Path) -> dict[str, dict[str, Any]]:
    """Return what a tree chooses, kept in the cache by the contents of its sources."""
    own = recorded.DATA.parent
    data = [own / "recorded.py", own / "gemm_shapes.py", *recorded.DATA.iterdir(), HERE / "choices.py"]
    stamp = f"{tree.results.name}-{max(int(file.stat().st_mtime) for file in data)}"
    kept = cache / "choices" / f"{stamp}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(tree.checkout / "src")}
        words = [sys.executable, str(HERE / "choices.py"), "--write", str(kept)]
        subprocess.run(words, env=environment, check=True)
    return json.loads(kept.read_text())


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser("choices", description=__doc__, formatter_class=raw)
    options.add_argument("revision", nargs="?", default="HEAD")
    options.add_argument("--only", type=re.compile, default=re.compile(""), help="a pattern of family/problem")
    options.add_argument("--alone", action="store_true", help="compare with no revision")
    options.add_argument("--write", type=Path, help="only write what the Kiln on PYTHONPATH chooses to a file")
    options.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "replay")
    asked = options.parse_args()
    if asked.write:
        part = asked.write.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(choices()))
        part.rename(asked.write)
        return 0
    from trees import Cache

    cache = Cache(asked.cache)
    measured = recorded.everything()
    own = of_tree(cache.tree(HERE.parent.parent, "working tree"), asked.cache)
    count = 0
    if not asked.alone:
        count = print_differences(of_tree(cache.revision(asked.revision), asked.cache), own, measured, asked.only)
    print_losses(own, measured, asked.only)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
