"""Code, messages and pages use the words of docs/glossary.md, and no private ones for the same things."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from source_tree import Problem, Tree

SOURCE = "src/kiln/"
KERNELS = "src/kiln/kernels/"
ADVICE = (KERNELS, "src/kiln/targets/nvidia/codegen.py", "src/kiln/targets/nvidia/remarks.py")
"""The kernels, and what speaks to users about them."""
OWN = "tools/lint/"
"""The checks, which have the words that they refuse."""
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/",
    "examples/",
    "tools/",
    "docs/architecture.md",
    "docs/blackwell.md",
    "docs/bridges.md",
    "docs/cpu-target.md",
    "docs/explain/",
    "docs/hopper.md",
    "docs/kernels",
    "docs/knowledge/",
    "docs/language.md",
    "docs/native.md",
    "docs/nvidia-target.md",
    "docs/performance.md",
    "docs/project/",
    "docs/reference/concepts",
    "docs/reference/inline-ptx.md",
    "docs/reference/patterns",
    "docs/reference/troubleshooting.md",
    "docs/sanitizer.md",
    "docs/tensors.md",
    "docs/tiles.md",
    "docs/workbench.md",
)
"""Programs and pages that are written by hand; docs/dialect.md and the API pages repeat docstrings."""


class Word(NamedTuple):
    """A private word: a regular expression for it, what to write instead, and below which folder it is banned."""

    pattern: str
    instead: str
    below: str | tuple[str, ...] = SOURCE


IDENTIFIERS = (
    Word("given", "the name of the thing, or Arguments"),
    Word("told|heard", "work broadcast, or the name of the thing"),
    Word("latents?", "compressed KV (mla, ckv)"),
    Word("doors?", "entry point"),
    Word("meanwhile", "overlapped"),
    Word("passports?", "argument record"),
    Word("products", "gemm, mma, wgmma"),
    Word("sums", "accumulators, partials, row_sum"),
    Word("multiprocessors?", "sm, sm_count"),
    Word("product", "gemm, mma", KERNELS),
    Word("tilings?|plans?", "config", KERNELS),
    Word("factors?", "scale", KERNELS),
    Word("figures?", "coefficients", KERNELS),
    Word("rings?", "stages, pipeline", KERNELS),
    Word("turned", "transposed, swap_ab", KERNELS),
    Word("swapped", "swap_ab", KERNELS),
    Word("odd", "unaligned", KERNELS),
    Word("deep", "hd256", KERNELS),
    Word("few", "decode, small_m", KERNELS),
    Word("lowered|powers|totals", "row_max, p, row_sum", KERNELS),
    Word("shares?", "group_size, split", KERNELS),
    Word("follows?", "epilogue", KERNELS),
    Word("asked", "problem, arguments", KERNELS),
    Word("found|made", "the name of the thing", KERNELS),
)
"""Words of which no identifier and no file name is composed."""

PROSE = (
    Word(r"copy engines?", "TMA", ""),
    Word(r"multiprocessors?", "SM", ""),
    Word(r"blocks? of threads", "CTA", ""),
    Word(r"warp groups?", "warpgroup", ""),
    Word(r"latents", "compressed KV", ""),
    Word(r"doors", "entry points", ""),
    Word(r"matrix products?", "GEMM, MMA", ""),
    Word(r"products? of (?:a warp|warp|matrices|groups|arrays|blocks|weights)", "GEMM, MMA", ""),
    Word(r"(?:two|three|five|its|their) products", "MMAs", ""),
    Word(r"sums of (?:a warp|warp|products|blocks|threads|tiles)", "accumulators, partials", ""),
    Word(r"(?:what|that) follows (?:the|a|it|them)\b", "epilogue", ""),
    Word(r"(?:rows|arrays) that begin anywhere", "unaligned rows", ""),
    Word(r"products?", "GEMM, MMA", ADVICE),
    Word(r"sums", "accumulators, partials, row_sum", ADVICE),
    Word(r"tilings?", "config", KERNELS),
    Word(r"sums(?! of squares)(?<!row sums)(?<!partial sums)(?<!prefix sums)", "accumulators, partials", PAGES),
    Word(r"products?", "GEMM, MMA, multiply-add", PAGES),
    Word(r"rings? of", "pipeline, stages", PAGES),
    Word(r"blocks of a cluster", "CTAs of a cluster", PAGES),
    Word(r"heads that share", "GQA: 32 query heads, 8 KV heads", PAGES),
    Word(r"heads of \d+(?! elements)", "head_dim", PAGES),
    Word(r"elements of a head", "head_dim", PAGES),
    Word(r"in turns", "alternating; pingpong", PAGES),
    Word(r"filled up|laid in succession", "padded; gathered", PAGES),
    Word(r"whole numbers?", "integers", PAGES),
    Word(r"factors? of (?:rows?|columns?|blocks?|groups?)", "scales", PAGES),
    Word(r"gradients of (?:attention|queries|keys|values|norms)", "backward, dQ, dK, dV", PAGES),
    Word(r"so many", "the number, or its name", PAGES),
    Word(r"likewise", "the whole statement", PAGES),
)
"""Phrases that no docstring, comment, message or page contains."""


class Allowed(NamedTuple):
    """A private word that one file may use, and why."""

    file: str
    word: str
    reason: str


_CUTLASS, _TORCH = "a method of cutlass.utils.HardwareInfo", "a field of torch.cuda.get_device_properties"
ALLOWED: tuple[Allowed, ...] = (
    Allowed("src/kiln/kernels/dispatch/arrays.py", "share", "numpy.may_share_memory"),
    Allowed("src/kiln/kernels/dispatch/arrays.py", "shares", "numpy.shares_memory"),
    Allowed("src/kiln/kernels/dispatch/recorder.py", "plan", "interop.arguments.plan, the call plan"),
    Allowed("src/kiln/kernels/dispatch/registry.py", "product", "itertools.product"),
    Allowed("src/kiln/kernels/impl/gemm/sm90_mixed_input.py", "product", "itertools.product"),
    Allowed("src/kiln/utils/hardware_info.py", "multiprocessor", _CUTLASS),
    Allowed("src/kiln/workbench/serve_cuda/bindings.py", "multiprocessor", _TORCH),
    Allowed("src/kiln/workbench/serve_cuda/device.py", "multiprocessor", _TORCH),
)
"""At most 60. The list only shrinks."""


def words(name: str) -> list[str]:
    """Return the words of an identifier, in lower case: `HopperRows_of` has hopper, rows, of."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_and_prose(tree: Tree, file: Path) -> tuple[set[tuple[int, str]], list[tuple[int, str]]]:
    """Return a file's identifiers, its path's parts among them as line 0, and its text for people; both with lines."""
    names = {(0, part) for part in file.relative_to(tree.root).with_suffix("").parts}
    text = tree.text(file)
    if file.suffix == ".md":
        return names, list(enumerate(text.splitlines(), 1))
    prose: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            names.add((token.start[0], token.string))
        elif token.type == tokenize.COMMENT:
            prose.append((token.start[0], token.string))
    for node in tree.nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            prose += enumerate(node.value.splitlines(), node.lineno)
    return names, prose


def banned(table: tuple[Word, ...], path: str) -> tuple[re.Pattern[str], dict[str, str]] | None:
    """Return what finds the words of a table that are banned at a path, and what to write for each group of them."""
    words = [word for word in table if path.startswith(word.below)]
    pattern = "|".join(f"(?P<w{number}>{word.pattern})" for number, word in enumerate(words))
    instead = {f"w{number}": word.instead for number, word in enumerate(words)}
    return (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) if words else None


@functools.cache
def has_word(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a word of an identifier matches."""
    return pattern.search(" ".join(words(name))) is not None


def is_clean_as_text(path: str, text: str) -> bool:
    """Return whether no line and nothing like a name matches: most files, which need not be split into tokens."""
    prose, names = banned(PROSE, path), banned(IDENTIFIERS, path)
    if prose is not None and prose[0].search(text):
        return False
    spelled = set(re.findall(r"[A-Za-z_]\w*", f"{path} {text}"))
    return names is None or not any(has_word(names[0], name) for name in spelled)


def private_words(tree: Tree, file: Path) -> list[tuple[int, str, str]]:
    """Return the private words of a file: line, word, what to write instead."""
    path = tree.name(file)
    if is_clean_as_text(path, tree.text(file)):
        return []
    allowed = {one.word for one in ALLOWED if one.file == path}
    names, prose = names_and_prose(tree, file)
    wrong: list[tuple[int, str, str]] = []
    for table, lines in ((IDENTIFIERS, [(line, " ".join(words(name))) for line, name in names]), (PROSE, prose)):
        if (search := banned(table, path)) is not None:
            for line, text in lines:
                wrong += [(line, m[0].lower(), search[1][str(m.lastgroup)]) for m in search[0].finditer(text)]
    return sorted({one for one in wrong if one[1] not in allowed})


def check(tree: Tree) -> Iterator[Problem]:
    """Yield the private words of sources, examples, benchmarks, tools and pages, and exceptions that nothing needs."""
    sources = [file for top in ("src/kiln", "examples", "benchmarks", "tools") for file in tree.files(top)]
    for file in (*sources, *tree.pages()):
        if file.name != "glossary.md" and not tree.name(file).startswith(OWN):
            for line, word, instead in private_words(tree, file):
                yield tree.at(file, line, f"{word!r} is a private word, write: {instead}")
    for one in ALLOWED:
        file = tree.root / one.file
        if file.exists() and one.word not in tree.text(file).lower():
            yield Problem(one.file, 0, f"no longer has {one.word!r}: take it out of ALLOWED in {Path(__file__).name}")
