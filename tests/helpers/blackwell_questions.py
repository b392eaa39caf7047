"""Questions about layouts of sm_100, as they were asked of CuTe DSL, asked of Kiln.

A question names a call and its arguments, such as `make_smem_layout_a (128, 256, 64) st3 Float16 Float16 Float32 KK
(128, 256) ONE`: the last words are element types, major modes, M and N, and the CTAs of the MMA.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from typing import Any

import kiln
from kiln import cute
from kiln.cute.nvgpu import CtaGroup, OperandMajorMode, tcgen05
from kiln.utils import LayoutEnum, blockscaled_layout, get_num_tmem_alloc_cols, sm100

K, MN = OperandMajorMode.K, OperandMajorMode.MN
MAJORS = {"KK": (K, K), "KMN": (K, MN), "MNK": (MN, K), "MNMN": (MN, MN)}
PAIR = r"\((\d+), (\d+)\)"
DENSE = re.compile(
    rf"(?P<before>.*?) ?(?P<a>\w+) (?P<b>\w+) (?P<acc>\w+) (?P<major>KK|KMN|MNK|MNMN) {PAIR} (?P<group>ONE|TWO)"
)
SCALED = re.compile(rf"(?P<before>.*?) ?(?P<a>\w+) (?P<b>\w+) (?P<sf>\w+) (?P<vec>16|32) {PAIR} (?P<group>ONE|TWO)")
FROM_TMEM = re.compile(rf"(?P<before>.*?) F16 TMEM-A {PAIR} (?P<group>ONE|TWO)")
TMEM_COPY = re.compile(rf"(?P<kind>ld|st) (?P<op>\w+) x(?P<repeat>\d+) acc{PAIR}(?P<group>ONE|TWO) (?P<what>.*)")
EPILOGUE = re.compile(
    r"(?P<what>[\w ]+?) (?P<layout>ROW_MAJOR|COL_MAJOR) (?P<d>\w+) (?P<acc>\w+) (?P<tile>\(\d+, \d+, \d+\)) "
    r"two(?P<two>True|False)"
)
IN_EPILOGUE = re.compile(
    r"(?P<what>epilogue partitions|pack \w+) (?P<layout>ROW_MAJOR|COL_MAJOR) (?P<d>\w+) "
    rf"{PAIR} (?P<group>ONE|TWO) (?P<acc>\w+)"
)
COLUMNS = re.compile(rf"get_num_tmem_alloc_cols (?P<what>one|list|raw) {PAIR} (?P<group>ONE|TWO) (?P<acc>\w+)")

SCALES = re.compile(
    rf"(?P<what>.*?) ?(?P<operand>sfa|sfb) (?P<ab>\w+) (?P<sf>\w+) (?P<vec>16|32) {PAIR} (?P<group>ONE|TWO)"
)
TMA = re.compile(
    rf"(?P<what>.*?) (?P<ab>Float16|TFloat32) (?P<major>KK|KMN|MNK|MNMN) {PAIR} (?P<group>ONE|TWO) "
    r"cluster(?P<cluster>\(\d+, \d+\))"
)


def area(question: str) -> str:
    """Return the function or the property that a question is about."""
    words = question.split()
    if words[0] in ("ld", "st"):
        return "make_tmem_copy"
    if " cluster(" in question:
        return f"tma: {words[0]}{' ' + words[1] if words[0] in ('tma', 'tma_partition') else ''}"
    if words[0] in ("s2t", "compact", "make_s2t_copy", "get_s2t_smem_desc_tensor", "tmem"):
        return "s2t copies"
    return words[0] if words[0] not in ("epilogue", "pack") else "epilogue partitions"


def dtype(name: str) -> Any:
    """Return an element type of Kiln by its name."""
    return getattr(kiln, name)


def one_line(text: Any) -> str:
    """Return what was printed with single blanks."""
    return " ".join(str(text).split())


def mode_texts(tiler: Any) -> str:
    """Return a tiler as a Python tuple of layouts prints."""
    return f"({', '.join(str(mode) for mode in tiler)})"


def answers(questions: Sequence[str]) -> list[str]:
    """Return Kiln's answers, all of one trace; an error is `ERR` and its text."""
    found: list[str] = []

    @cute.jit
    def ask(number: kiln.Int32):
        for question in questions:
            try:
                found.append(one_line(answer(question, number)))
            except Exception as e:
                found.append(f"ERR {type(e).__name__}: {one_line(e)}")
        raise _Answered  # nothing is compiled

    with contextlib.suppress(_Answered):
        cute.compile(ask, 1)
    return found


class _Answered(Exception):
    """Ends a trace."""


_MMAS: dict[Any, Any] = {}


def dense_mma(a: str, b: str, acc: str, major: str, m: str, n: str, group: str) -> Any:
    """Return the MMA of a question."""
    key = (a, b, acc, major, m, n, group)
    if key not in _MMAS:
        types = (dtype(a), dtype(b), *MAJORS[major], dtype(acc), CtaGroup[group], (int(m), int(n)))
        _MMAS[key] = sm100.make_trivial_tiled_mma(*types)
    return _MMAS[key]


def answer(question: str, number: Any) -> Any:
    """Return Kiln's answer to a question; `number` is a dynamic integer for coordinates and extents."""
    if found := SCALES.fullmatch(question):
        return scale_factors(found)
    if found := TMA.fullmatch(question):
        return tma_operand(found, number)
    if found := TMEM_COPY.fullmatch(question):
        return tmem_copy(found)
    if found := IN_EPILOGUE.fullmatch(question):
        return epilogue_partitions(found)
    if found := COLUMNS.fullmatch(question):
        return columns(found)
    if found := EPILOGUE.fullmatch(question):
        return epilogue(found)
    if found := FROM_TMEM.fullmatch(question):
        m, n = (int(x) for x in found.groups()[1:3])
        mma = sm100.make_trivial_tiled_mma(
            kiln.Float16, kiln.Float16, K, K, kiln.Float32, CtaGroup[found["group"]], (m, n), tcgen05.OperandSource.TMEM
        )
        return of_mma(found["before"], mma, kiln.Float16, kiln.Float16, 0)
    if found := DENSE.fullmatch(question):
        m, n = found.groups()[5:7]
        mma = dense_mma(found["a"], found["b"], found["acc"], found["major"], m, n, found["group"])
        return of_mma(found["before"], mma, dtype(found["a"]), dtype(found["b"]), 0)
    if found := SCALED.fullmatch(question):
        m, n = found.groups()[5:7]
        vector = int(found["vec"])
        mma = sm100.make_blockscaled_trivial_tiled_mma(
            dtype(found["a"]),
            dtype(found["b"]),
            K,
            K,
            dtype(found["sf"]),
            vector,
            CtaGroup[found["group"]],
            (int(m), int(n)),
        )
        return of_mma(found["before"], mma, dtype(found["a"]), dtype(found["b"]), vector)
    return of_shapes(question)


def of_mma(what: str, mma: Any, a: Any, b: Any, vector: int) -> Any:
    """Return the answer to a question about an MMA."""
    name, _, rest = what.partition(" ")
    if name == "tiled_mma":
        return mma
    if name.startswith("tiled_mma."):
        return getattr(mma, name.removeprefix("tiled_mma."))
    if name.startswith("partition_shape"):
        return getattr(mma, name.removesuffix("2"))(ast.literal_eval(rest))
    if found := re.fullmatch(r"identity (\(.*\)) slice(\d)", rest):
        return getattr(mma.get_slice(int(found[2])), name)(cute.make_identity_tensor(ast.literal_eval(found[1])))
    if found := re.fullmatch(r"(\(.*\))(?: st(\d+))?", rest):
        tiler = ast.literal_eval(found[1])
        if name in ("make_smem_layout_a", "make_smem_layout_b"):
            return getattr(sm100, name)(mma, tiler, a if name.endswith("a") else b, int(found[2]))
        if name.startswith("make_smem_layout_sf"):
            return getattr(blockscaled_layout, name)(mma, tiler, vector, int(found[2]))
        smem = getattr(blockscaled_layout, name.replace("tmem", "smem"))(mma, tiler, vector, 1)
        return getattr(blockscaled_layout, name)(mma, tiler, vector, smem)
    if rest.startswith("sf"):
        return "unknown question"
    if name == "make_fragment_A" and rest == "layout":
        return mma.make_fragment_A(mma.partition_shape_A((mma.shape_mnk[0], 128))).layout
    shape = mma.partition_shape_C(mma.shape_mnk[:2])
    one, two = mma.make_fragment_C(shape), mma.make_fragment_C(cute.append(shape, 2))
    if name == "make_fragment_C":
        return (two if rest == "stages2" else one).layout
    if name == "find_tmem_tensor_col_offset":
        return tcgen05.find_tmem_tensor_col_offset(one)
    return get_num_tmem_alloc_cols(two) if name == "get_num_tmem_alloc_cols" else "unknown question"


def tma_operand(found: re.Match[str], number: Any) -> Any:
    """Return the answer to a question about TMA loads of an operand with dynamic extents, in three stages."""
    what = found["what"].replace("tma_partition", "tma_partition of").split()
    operand = next(word[-1] for word in what if word in ("A", "B") or word[:-1] in ("partition_", "make_fragment_"))
    m, n = (int(x) for x in found.groups()[3:5])
    ab = dtype(found["ab"])
    mma = dense_mma(found["ab"], found["ab"], "Float32", found["major"], str(m), str(n), found["group"])
    cluster = cute.make_layout((*ast.literal_eval(found["cluster"]), 1))
    vmnk = cute.tiled_divide(cluster, (mma.thr_id.shape,))
    tiler = (m, n, 1024 // ab.width)
    staged = getattr(sm100, f"make_smem_layout_{operand.lower()}")(mma, tiler, ab, 3)
    smem = cute.make_ptr(ab, number, cute.AddressSpace.smem, assumed_align=128, swizzle_=staged.inner)
    tile = cute.make_tensor(smem, staged.outer)
    if what[0] == "smem":
        return tile
    stored = kiln.Float32 if ab is kiln.TFloat32 else ab
    row = cute.assume(kiln.Int64(number), divby=16)
    strides = (row, 1) if MAJORS[found["major"]]["AB".index(operand)] is K else (1, row)
    memory = cute.make_ptr(stored, number, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(memory, cute.make_layout((number, number), stride=strides))
    op = getattr(sm100, f"cluster_shape_to_tma_atom_{operand}")(cluster.shape, mma.thr_id)
    make = getattr(cute.nvgpu, f"make_tiled_tma_atom_{operand}")
    one_stage = cute.slice_(staged, (None, None, None, 0))
    atom, coordinates = make(
        op, tensor, one_stage, tiler, mma, vmnk.shape, internal_type=ab if ab is not stored else None
    )  # fmt: skip
    if what[:2] == ["tma", "atom"]:
        return atom
    if what[:2] == ["tma", "tensor"]:
        return coordinates.type if what[2] == "type" else coordinates
    if what[0].startswith("make_fragment"):
        fragment = getattr(mma, what[0])(tile)
        return fragment.layout if what[1] == "layout" else fragment.iterator
    tiles = cute.local_tile(
        coordinates, cute.slice_(tiler, (None, 0, None) if operand == "A" else (0, None, None)), (None, None)
    )
    if what[0] == "local_tile":
        return tiles
    place = vmnk.get_flat_coord(number % cute.size(cluster))
    part = getattr(mma.get_slice(place[0]), f"partition_{operand}")(tiles)
    if what[0].startswith("partition_"):
        return part
    mode = 2 if operand == "A" else 1
    ctas = cute.make_layout(cute.size(vmnk, mode=[mode]))
    smem_part, gmem_part = cute.nvgpu.cpasync.tma_partition(
        atom, place[mode], ctas, cute.group_modes(tile, 0, 3), cute.group_modes(part, 0, 3)
    )
    return smem_part if "smem" in what else gmem_part


def scale_factors(found: re.Match[str]) -> Any:
    """Return the answer to a question about scale factors and their copies to tensor memory, in two stages."""
    what, operand = found["what"].split(), found["operand"]
    m, n = (int(x) for x in found.groups()[5:7])
    ab, sf, vector, group = dtype(found["ab"]), dtype(found["sf"]), int(found["vec"]), CtaGroup[found["group"]]
    mma = sm100.make_blockscaled_trivial_tiled_mma(ab, ab, K, K, sf, vector, group, (m, n))
    tiler = (m, n, 4 * mma.shape_mnk[2])
    smem_layout = getattr(blockscaled_layout, f"make_smem_layout_{operand}")(mma, tiler, vector, 2)
    one = cute.slice_(smem_layout, (None, None, None, 0))
    tmem_layout = getattr(blockscaled_layout, f"make_tmem_layout_{operand}")(mma, tiler, vector, one)
    tmem = cute.make_tensor(cute.make_ptr(sf, 0, cute.AddressSpace.tmem), tmem_layout)
    if what == ["tmem"]:
        return tmem
    if what == ["find_tmem_tensor_col_offset"]:
        return tcgen05.find_tmem_tensor_col_offset(tmem)
    smem = cute.make_tensor(cute.make_ptr(sf, 0, cute.AddressSpace.smem, assumed_align=128), smem_layout)
    smem, tmem = cute.filter_zeros(smem), cute.filter_zeros(tmem)
    if what[0] == "compact":
        return (smem if what[1] == "smem" else tmem).layout
    tiled = tcgen05.make_s2t_copy(cute.make_copy_atom(tcgen05.Cp4x32x128bOp(group), sf), tmem)
    if what == ["make_s2t_copy"]:
        return tiled
    if what[0] == "get_s2t_smem_desc_tensor":
        descriptors: Any = getattr(tcgen05, what[0])
        return descriptors(tiled, tiled.get_slice(0).partition_S(smem)).layout
    if what[1] == "tiler_mn":
        return mode_texts(tiled.tiler_mn)
    if what[1].startswith("partition"):
        return getattr(tiled.get_slice(0), what[1])(smem if what[1] == "partition_S" else tmem).layout
    return getattr(tiled, what[1])


def accumulator(m: Any, n: Any, group: str, acc: Any, stages: int = 0) -> Any:
    """Return the accumulator of a tile in tensor memory."""
    ab = kiln.Float16 if acc in (kiln.Float16, kiln.Float32) else kiln.Int8
    mma = sm100.make_trivial_tiled_mma(ab, K, K, acc, CtaGroup[group], (int(m), int(n)))
    shape = mma.partition_shape_C((int(m), int(n)))
    return mma.make_fragment_C(cute.append(shape, stages) if stages else shape)


def tmem_copy(found: re.Match[str]) -> Any:
    """Return the answer to a question about a copy of an accumulator."""
    m, n = found.groups()[3:5]
    acc = accumulator(m, n, found["group"], kiln.Float32)
    atom = cute.make_copy_atom(getattr(tcgen05, found["op"])(tcgen05.Repetition(int(found["repeat"]))), kiln.Float32)
    what = found["what"]
    if what == "atom":
        return atom
    tensor = acc[(None, None), 0, 0]
    tiled = tcgen05.make_tmem_copy(atom, tensor)
    if what == "tiler_mn":
        return mode_texts(tiled.tiler_mn)
    if "partition" not in what:
        return getattr(tiled, what)
    _, place, thread = what.split()
    part = tiled.get_slice(int(thread.removeprefix("thread")))
    load = found["kind"] == "ld"
    if place == "tmem":
        return (part.partition_S if load else part.partition_D)(tensor).layout
    return (part.partition_D if load else part.partition_S)(cute.make_identity_tensor(tensor.shape))


def epilogue(found: re.Match[str]) -> Any:
    """Return the answer to a question about an epilogue."""
    what, layout, two = found["what"], LayoutEnum[found["layout"]], found["two"] == "True"
    d, acc, tile = dtype(found["d"]), dtype(found["acc"]), ast.literal_eval(found["tile"])
    if what == "compute_epilogue_tile_shape with C":
        made = sm100.compute_epilogue_tile_shape(tile, two, layout, d, layout_c=layout, elem_ty_c=kiln.Float16)
        return mode_texts(made)
    epi = sm100.compute_epilogue_tile_shape(tile, two, layout, d)
    if what == "compute_epilogue_tile_shape":
        return mode_texts(epi)
    if stages := re.fullmatch(r"make_smem_layout_epi st(\d+)", what):
        return sm100.make_smem_layout_epi(d, layout, epi, int(stages[1]))
    load = sm100.get_tmem_load_op(tile, layout, d, acc, epi, two)
    if what.startswith("get_tmem_load_op"):
        return load
    tensor = accumulator(tile[0], tile[1], "ONE", acc)[(None, None), 0, 0]
    tiled = tcgen05.make_tmem_copy(load, cute.flat_divide(tensor, epi)[None, None, 0, 0])
    return sm100.get_smem_store_op(layout, d, acc, tiled)


def epilogue_partitions(found: re.Match[str]) -> Any:
    """Return the answer to a question about the parts of an accumulator that a thread loads in an epilogue."""
    m, n = (int(x) for x in found.groups()[3:5])
    two, layout, d, acc = found["group"] == "TWO", LayoutEnum[found["layout"]], dtype(found["d"]), dtype(found["acc"])
    tensor = accumulator(m, n, found["group"], acc)[(None, None), 0, 0]
    tile = (m // 2 if two else m, n, 64)
    epi = sm100.compute_epilogue_tile_shape(tile, two, layout, d)
    if found["what"].startswith("pack"):
        op = tcgen05.Ld32x32bOp(tcgen05.Repetition.x16, tcgen05.Pack[found["what"].split()[1]])
        return tcgen05.make_tmem_copy(cute.make_copy_atom(op, acc), tensor).layout_dst_tv_tiled
    divided = cute.flat_divide(tensor, epi)
    tiled = tcgen05.make_tmem_copy(sm100.get_tmem_load_op(tile, layout, d, acc, epi, two), divided[None, None, 0, 0])
    part = tiled.get_slice(37).partition_S(divided)
    shown = (divided.layout, part.layout, tiled.layout_dst_tv_tiled, mode_texts(tiled.tiler_mn))
    return mode_texts(shown)


def columns(found: re.Match[str]) -> Any:
    """Return the answer to a question about the columns of several tensors."""
    m, n = found.groups()[1:3]
    acc = dtype(found["acc"])
    one, two = accumulator(m, n, found["group"], acc), accumulator(m, n, found["group"], acc, 2)
    if found["what"] == "one":
        return get_num_tmem_alloc_cols(one)
    if found["what"] == "raw":
        return get_num_tmem_alloc_cols([one, one, one], rounding=False)
    return get_num_tmem_alloc_cols([one, two])


def of_shapes(question: str) -> Any:
    """Return the answer to a question about shapes alone."""
    if found := re.fullmatch(r"(cluster_shape_to_tma_atom_\w+) (\(.*\)) (ONE|TWO)", question):
        threads = cute.make_layout(CtaGroup[found[3]].value)
        op = getattr(sm100, found[1])(ast.literal_eval(found[2]), threads)
        kind = "multicast copy" if op.multicast else "copy"
        pair = " CTA group = 2" if op.cta_group is CtaGroup.TWO else ""
        return f"cp.async GMEM -> SMEM bulk tensor {kind} Operation{pair}"
    if found := re.fullmatch(r"cta_layout_vmnk \((\d+), (\d+)\) (ONE|TWO)", question):
        mma = dense_mma("Float16", "Float16", "Float32", "KK", "128", "128", found[3])
        cluster = cute.make_layout((int(found[1]), int(found[2]), 1))
        return cute.tiled_divide(cluster, (mma.thr_id.shape,))
    if found := re.fullmatch(r"tile_atom_to_shape_SF (\(.*\)) (\d+)", question):
        return blockscaled_layout.tile_atom_to_shape_SF(ast.literal_eval(found[1]), int(found[2]))
    if found := re.fullmatch(r"make_smem_layout_atom (\w+) (\w+)", question):
        return tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind[found[1]], dtype(found[2]))
    return "unknown question"
