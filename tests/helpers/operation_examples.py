"""For each operation of the dialects: one that is right, and some that break a rule, with words of what is said about it.

`{}` stands for nothing; the values are arguments of a function (`ARGUMENTS`) and constants (`CONSTANTS`).
"""

from __future__ import annotations

ARGUMENTS = {
    "%g": '!cute.ptr<f32, "gmem", 16>', "%s": '!cute.ptr<f32, "smem", 16>', "%any": '!cute.ptr<f32, "generic", 16>',
    "%m": '!cute.memref<f32, "gmem", 16, "(?,?{i64}):(1,?)">', "%n": "i32", "%w": "i64", "%c": "i1", "%x": "f32", "%h": "f16",
    "%small": "i8", "%pair": "vector<2xf32>", "%halves": "vector<2xf16>", "%words": "vector<4xi32>", "%two": "vector<2xi32>",
    "%sums": "vector<4xf32>", "%none": "tuple<>", "%map": "!cute_nvgpu.tensor_map", "%half": "i16",
    "%r": '!cute.ptr<f32, "rmem", 16>', "%bytes": '!cute.ptr<i8, "rmem", 16>',
}  # fmt: skip
CONSTANTS = {
    "%zero": 0,
    "%one": 1,
    "%sixteen": 16,
    "%odd": 33,
    "%most": 1024,
    "%minus": -1,
    "%twelve": 12,
    "%huge": 1 << 20,
    "%spare": 1 << 4 | 1 << 17 | 4 << 24 | 1 << 3,
}

_PTR, _SMEM, _ANY = ARGUMENTS["%g"], ARGUMENTS["%s"], ARGUMENTS["%any"]
_MEM = ARGUMENTS["%m"]
_SIZES = ", ".join(["%w"] * 11)
_SIZE_TYPES = ", ".join(["i64"] * 11)


def _op(name: str, operands: str = "", types: str = "", result: str = "()", attributes: str = "") -> str:
    return f'"{name}"({operands}) {{{attributes}}} : ({types}) -> {result}'


def _index(name: str) -> tuple[str, dict[str, str]]:
    return (
        _op(f"cute.{name}", result="i32", attributes="dim = 0 : i32"),
        {_op(f"cute.{name}", result="i32", attributes="dim = 3 : i32"): "has the dim 3 : i32: it is one of 0, 1, 2"},
    )


def _launch(name: str, attributes: str) -> tuple[str, dict[str, str]]:
    pack = "%packed = builtin.unrealized_conversion_cast %n : i32 to tuple<i32>\n"

    def launch(more: str) -> str:
        return pack + _op(name, f"{_SIZES}, %packed", f"{_SIZE_TYPES}, tuple<i32>", attributes=attributes + more)

    bare = _op(name, f"{_SIZES}, %none", f"{_SIZE_TYPES}, tuple<>", attributes=attributes)
    return launch(", cute.use_pdl"), {
        bare: "takes its arguments as a tuple", launch(", cute.coperative"): "has no attribute 'cute.coperative'"
    }  # fmt: skip


def _report(name: str, operands: str, types: str, text: str) -> tuple[str, dict[str, str]]:
    pack = "%packed = builtin.unrealized_conversion_cast %n : i32 to tuple<i32>\n"
    right = _op(name, f"{operands}%packed", f"{types}tuple<i32>", attributes=f'{text} = "%d"')
    wrong = _op(name, f"{operands}%packed", f"{types}tuple<i32>", attributes=f'{text} = "%f"')
    bare = _op(name, f"{operands}%n", f"{types}i32", attributes=f'{text} = "%d"')
    return pack + right, {pack + wrong: 'has the format "%f"', bare: "takes its arguments as a tuple"}


def _mma(m: int, n: int, k: int, a: str, b: str, c: str = "%sums", c_type: str = "vector<4xf32>") -> str:
    given = f'm = {m} : i32, n = {n} : i32, k = {k} : i32, a_type = "{a}", b_type = "{b}"'
    return _op("cute_nvgpu.mma_sync", f"%words, %two, {c}", f"vector<4xi32>, vector<2xi32>, {c_type}", c_type, given)


def _mma_sp(k: int, a: str, b: str, selector: int = 0, words: str = "%words", c: str = "%sums") -> str:
    given = f'm = 16 : i32, n = 8 : i32, k = {k} : i32, a_type = "{a}", b_type = "{b}", selector = {selector} : i32'
    held = {"%words": "vector<4xi32>", "%two": "vector<2xi32>"}[words]
    type_ = {"%sums": "vector<4xf32>", "%pair": "vector<2xf32>"}[c]
    types = f"{held}, {held}, {type_}, i32"
    return _op("cute_nvgpu.mma_sp", f"{words}, {words}, {c}, %n", types, type_, given)


def _scaled_mma(kind: str, k: int, a: str, b: str, scale: str, vector: int, byte: int = 0, c: str = "%sums") -> str:
    given = (
        f'm = 16 : i32, n = 8 : i32, k = {k} : i32, kind = "{kind}", a_type = "{a}", b_type = "{b}", scale_type = "{scale}", '
        f"scale_vector = {vector} : i32, byte_a = {byte} : i32, thread_a = 1 : i32, byte_b = 0 : i32, thread_b = 3 : i32"
    )
    type_ = {"%sums": "vector<4xf32>", "%pair": "vector<2xf32>"}[c]
    types = f"vector<4xi32>, vector<2xi32>, {type_}, i32, i32"
    return _op("cute_nvgpu.mma_block_scale", f"%words, %two, {c}, %n, %n", types, type_, given)


def _atomic(kind: str, value: str, type_: str, order: str = "relaxed") -> str:
    given = f'kind = "{kind}", order = "{order}", scope = "gpu"'
    return _op("cute_nvgpu.atomic_rmw", f"%g, {value}", f"{_PTR}, {type_}", type_, given)


def _multimem(name: str, pointer: str, result: str, given: str) -> str:
    return _op(f"cute_nvgpu.multimem_{name}", pointer, ARGUMENTS[pointer], result, given)


def _bulk_load(operands: str, attributes: str = "") -> str:
    types = f"{_SMEM}, {_PTR if '%g' in operands else _SMEM}, i32, {_SMEM}, i16, i64"
    return _op("cute_nvgpu.bulk_load", f"{operands}, %half, %w", types, attributes=attributes)


def _wait(name: str, result: str = "i1") -> tuple[str, dict[str, str]]:
    return (
        _op(f"cute_nvgpu.{name}", "%s, %n", f"{_SMEM}, i32", result),
        {_op(f"cute_nvgpu.{name}", "%g, %n", f"{_PTR}, i32", result): "has its mbarrier in gmem"},
    )


def _wgmma(
    n: int, k: int, a_type: str, b_type: str, a: str = "%w", d: str = "%r", a_major: str = "k", b_major: str = "k"
) -> str:
    given = f'n = {n} : i32, k = {k} : i32, a_type = "{a_type}", b_type = "{b_type}", a_major = "{a_major}", b_major = "{b_major}"'
    return _op("cute_nvgpu.wgmma", f"{d}, {a}, %w, %c", f"{ARGUMENTS[d]}, {ARGUMENTS[a]}, i64, i1", attributes=given)


def _matrix_descriptor(pointer: str = "%s", leading: int = 16, swizzle: str = "128b") -> str:
    given = f'leading = {leading} : i32, stride = 1024 : i32, swizzle = "{swizzle}"'
    return _op("cute_nvgpu.matrix_descriptor", pointer, ARGUMENTS[pointer], "i64", given)


def _columns(name: str, first: str) -> tuple[str, dict[str, str]]:
    """An operation that takes a number of columns of tensor memory."""
    type_ = ARGUMENTS.get(first, "i32")

    def made(columns: str, group: int = 1) -> str:
        return _op(name, f"{first}, {columns}", f"{type_}, i32", attributes=f"cta_group = {group} : i32")

    return made("%n", 2), {
        made("%odd"): "is of 33 columns: a power of two from 32 to 512",
        made("%most"): "is of 1024 columns: a power of two from 32 to 512",
        made("%sixteen"): "is of 16 columns",
        made("%n", 3): "has the cta_group 3 : i32: it is one of 1, 2",
    }


def _tcgen05_mma(
    a: str = "%w", kind: str = "f16", group: int = 1, masks: int = 0, more: str = "", idesc: str = "%n"
) -> str:
    operands, types = (
        f"%n, {a}, %w, {idesc}, %c" + ", %n" * masks,
        f"i32, {ARGUMENTS[a]}, i64, i32, i1" + ", i32" * masks,
    )
    given = f'kind = "{kind}", cta_group = {group} : i32{more}'
    return _op("cute_nvgpu.tcgen05_mma", operands, types, attributes=given)


def _tcgen05_mma_sp(a: str = "%w", kind: str = "f16", masks: int = 0, more: str = "", idesc: str = "%n") -> str:
    operands = f"%n, {a}, %w, {idesc}, %c, %n" + ", %n" * masks
    types = f"i32, {ARGUMENTS[a]}, i64, i32, i1, i32" + ", i32" * masks
    return _op("cute_nvgpu.tcgen05_mma_sp", operands, types, attributes=f'kind = "{kind}", cta_group = 1 : i32{more}')


def _tcgen05_mma_block_scale(kind: str, block: int, a: str = "%w", idesc: str = "%n") -> str:
    types = f"i32, {ARGUMENTS[a]}, i64, i32, i32, i32, i1"
    given = f'kind = "{kind}", block = {block} : i32, cta_group = 2 : i32, collector = "lastuse"'
    return _op("cute_nvgpu.tcgen05_mma_block_scale", f"%n, {a}, %w, {idesc}, %n, %n, %c", types, attributes=given)


def _tcgen05_mma_ws(kind: str = "f16", idesc: str = "%n", masks: int = 1, collector: str = "b3::lastuse") -> str:
    types = "i32, i64, i64, i32, i1" + ", i64" * masks
    given = f'kind = "{kind}", collector = "{collector}"'
    return _op("cute_nvgpu.tcgen05_mma_ws", f"%n, %w, %w, {idesc}, %c" + ", %w" * masks, types, attributes=given)


def _tcgen05_ld(shape: str, repeat: int, registers: int, more: str = "") -> str:
    given = f'shape = "{shape}", repeat = {repeat} : i32{more}'
    return _op("cute_nvgpu.tcgen05_ld", "%n", "i32", f"vector<{registers}xi32>", given)


def _tcgen05_ld_red(shape: str, repeat: int, registers: int, more: str = 'type = "f32"') -> str:
    given = f'shape = "{shape}", repeat = {repeat} : i32, reduction = "max", {more}'
    return _op("cute_nvgpu.tcgen05_ld_red", "%n", "i32", f"vector<{registers}xi32>", given)


def _tcgen05_st(shape: str, repeat: int, value: str = "%words", more: str = "") -> str:
    given = f'shape = "{shape}", repeat = {repeat} : i32{more}'
    return _op("cute_nvgpu.tcgen05_st", f"%n, {value}", f"i32, {ARGUMENTS[value]}", attributes=given)


def _tcgen05_descriptor(
    pointer: str = "%s", stride: int = 1024, swizzle: str = "128b_32b", leading: int = 16, chunks: str = ""
) -> str:
    given = f'leading = {leading} : i32, stride = {stride} : i32, swizzle = "{swizzle}"'
    operands = [pointer, *chunks.split()]
    types = ", ".join(ARGUMENTS[each] for each in operands)
    return _op("cute_nvgpu.tcgen05_matrix_descriptor", ", ".join(operands), types, "i64", given)


def _tcgen05_cp(shape: str, format_: str) -> str:
    given = f'shape = "{shape}", cta_group = 1 : i32, format = "{format_}"'
    return _op("cute_nvgpu.tcgen05_cp", "%n, %w", "i32, i64", attributes=given)


def _tcgen05_commit(mbarrier: str = "%s", masks: int = 1) -> str:
    types = ARGUMENTS[mbarrier] + ", i16" * masks
    return _op("cute_nvgpu.tcgen05_commit", mbarrier + ", %half" * masks, types, attributes="cta_group = 2 : i32")


def _of_a_kind(name: str, *kinds: str) -> tuple[str, dict[str, str]]:
    wrong = _op(name, attributes='kind = "all"')
    return _op(name, attributes=f'kind = "{kinds[0]}"'), {wrong: f'has the kind "all": it is one of {", ".join(kinds)}'}


def _matrix_store(name: str) -> tuple[str, dict[str, str]]:
    right = _op(f"cute_nvgpu.{name}", "%s, %words", f"{_SMEM}, vector<4xi32>", attributes="count = 4 : i32")
    return right, {
        right.replace("4 : i32", "3 : i32"): "has the count 3 : i32: it is one of 1, 2, 4",
        right.replace("4 : i32", "2 : i32"): "has registers of vector<4xi32>: it has 2 i32",
        right.replace("%s", "%g").replace(_SMEM, _PTR): "has its rows in gmem",
        right.replace("4 : i32", "4 : i32, unpack = 4 : i32"): "has no attribute 'unpack'",
    }


_COORDINATES = """%one_at = builtin.unrealized_conversion_cast %n : i32 to tuple<i32>
    %at = builtin.unrealized_conversion_cast %n, %n, %n, %n : i32, i32, i32, i32 to tuple<i32, i32, i32, i32>
    %off = builtin.unrealized_conversion_cast %half, %half : i16, i16 to tuple<i16, i16>
    %sizes = builtin.unrealized_conversion_cast %w, %w : i64, i64 to tuple<i64, i64>
    %stride = builtin.unrealized_conversion_cast %w : i64 to tuple<i64>
    %wide_at = builtin.unrealized_conversion_cast %w : i64 to tuple<i64>
    """
_FOUR, _TWO = "tuple<i32, i32, i32, i32>", "tuple<i16, i16>"


def _encode() -> tuple[str, dict[str, str]]:
    given = (
        'element = "f16", swizzle = "128b", interleave = "none", promotion = "128b", fill = "zeros", tensor = "A", '
        "box = array<i32: 64, 8>, element_strides = array<i32: 1, 1>"
    )
    types = f"{_PTR}, tuple<i64, i64>, tuple<i64>"
    right = _COORDINATES + _op(
        "cute_nvgpu.tensor_map_encode", "%g, %sizes, %stride", types, "!cute_nvgpu.tensor_map", given
    )
    return right, {
        right.replace('"f16"', '"e4m3"'): 'has the element "e4m3": it is one of u8',
        right.replace('"128b", i', '"96b", i'): 'has the swizzle "96b"',
        right.replace("64, 8>", "64>"): "has a box of 1 modes for 2",
        right.replace(", box = array<i32: 64, 8>", ""): "has no box or no element strides",
        right.replace("%g, %sizes, %stride", "%g, %sizes, %sizes").replace(types, types.replace("tuple<i64>", "tuple<i64, i64>")):
        "has 2 strides for 2 modes",
        right.replace("%g, %sizes, %stride", "%g, %w, %stride").replace(types, f"{_PTR}, i64, tuple<i64>"):
        "takes its sizes and strides as tuples",
        right.replace("%g,", "%s,").replace(types, types.replace("gmem", "smem")): "has its tensor in smem: it is in gmem",
    }  # fmt: skip


def _tma_load() -> tuple[str, dict[str, str]]:
    operands, types = "%g, %s, %s, %at, %off, %half, %w", f"{_PTR}, {_SMEM}, {_SMEM}, {_FOUR}, {_TWO}, i16, i64"

    def load(new: str = operands, new_types: str = types, given: str = "multicast = true, hint = true") -> str:
        return _COORDINATES + _op("cute_nvgpu.tma_load", new, new_types, attributes=given)

    return load(), {
        load(given="multicst = true"): "has no attribute 'multicst': it has multicast, hint",
        load(operands.replace("%g", "%s"), types.replace(_PTR, _SMEM)): "has its tensor map in smem: it is in gmem",
        load(operands.replace("%s, %s", "%g, %s"), types.replace(_SMEM, _PTR, 1)): "has its target in gmem: it is in smem",
        load(operands.replace("%at", "%n"), types.replace(_FOUR, "i32")): "takes its coordinates as a tuple",
        load(operands.replace("%at, %off", "%wide_at, %none"), types.replace(f"{_FOUR}, {_TWO}", "tuple<i64>, tuple<>")):
        "has coordinates of i64: they are i32",
        load(operands.replace("%at", "%one_at"), types.replace(_FOUR, "tuple<i32>")): "has 2 offsets: two less than coordinates",
        load(given="to_leader = true"): "signals the leader of a pair without cta_group 2",
        load(given="gather4 = true"): "takes four rows and has 4 coordinates: x and four rows",
    }  # fmt: skip


def _tma_store() -> tuple[str, dict[str, str]]:
    operands, types = "%g, %s, %at, %w", f"{_PTR}, {_SMEM}, {_FOUR}, i64"
    right = _COORDINATES + _op("cute_nvgpu.tma_store", operands, types, attributes='reduction = "add", hint = true')
    return right, {
        right.replace('"add"', '"mul"'): 'has the reduction "mul": it is one of add',
        right.replace(operands, operands.replace("%s", "%g")).replace(types, types.replace(_SMEM, _PTR)): "has its source in gmem",
        right.replace(operands, operands.replace("%at", "%n")).replace(types, types.replace(_FOUR, "i32")):
        "takes its coordinates as a tuple",
        right.replace("hint = true", "scatter4 = true"): "scatters rows that are pixels or reduced",
        right.replace('reduction = "add", hint', "scatter4"): "takes four rows and has 4 coordinates",
    }  # fmt: skip


def _replace(field: str, value: str, kind: str, ordinal: int = 0, pointer: str = "%s") -> str:
    given = f'field = "{field}", ordinal = {ordinal} : i32'
    return _op(
        "cute_nvgpu.tensor_map_replace", f"{pointer}, {value}", f"{ARGUMENTS[pointer]}, {kind}", attributes=given
    )


_TRACE = (
    "address = 1048576 : i64, warps = 1 : i32, warp_bytes = 128 : i64, chunk_bytes = 64 : i64, entries = 7 : i32, "
    "lane = {} : i32, blocks = array<i32: 0>"
)

EXAMPLES: dict[str, tuple[str, dict[str, str]]] = {
    "cute.thread_idx": _index("thread_idx"),
    "cute.block_idx": _index("block_idx"),
    "cute.block_dim": _index("block_dim"),
    "cute.grid_dim": _index("grid_dim"),
    "cute.lane_idx": (_op("cute.lane_idx", result="i32"), {_op("cute.lane_idx", result="i64"): "expected 'i32'"}),
    "cute.warp_idx": (_op("cute.warp_idx", result="i32"), {_op("cute.warp_idx", result="i64"): "expected 'i32'"}),
    "cuda.launch_ex": _launch("cuda.launch_ex", "kernel = @f"),
    "cute.printf": _report("cute.printf", "", "", "format"),
    "cute.assert_": _report("cute.assert_", "%c, ", "i1, ", "message"),
    "cute.int_to_ptr": (_op("cute.int_to_ptr", "%w", "i64", _PTR), {_op("cute.int_to_ptr", "%n", "i32", _PTR): "expected 'i64'"}),
    "cute.ptr_to_int": (_op("cute.ptr_to_int", "%g", _PTR, "i64"), {_op("cute.ptr_to_int", "%w", "i64", "i64"): "cute.ptr"}),
    "cute.ptr_add": (
        _op("cute.ptr_add", "%g, %n", f"{_PTR}, i32", _PTR),
        {_op("cute.ptr_add", "%g, %n", f"{_PTR}, i32", _SMEM): "element and space stay the same"},
    ),
    "cute.cast_ptr": (_op("cute.cast_ptr", "%g", _PTR, _ANY), {_op("cute.cast_ptr", "%g", _PTR, "i64"): "cute.ptr"}),
    "cute.view": (
        _op("cute.view", "%g, %n, %n, %w", f"{_PTR}, i32, i32, i64", _MEM, "operandSegmentSizes = array<i32: 1, 2, 1>"),
        {
            _op("cute.view", "%g, %n, %w", f"{_PTR}, i32, i64", _MEM, "operandSegmentSizes = array<i32: 1, 1, 1>"):
            "has [1, 1] leaves of 32 and 64 bits",
        },
    ),
    "cute.iter": (_op("cute.iter", "%m", _MEM, _PTR), {_op("cute.iter", "%g", _PTR, _PTR): "cute.memref"}),
    "cute.leaf": (
        _op("cute.leaf", "%m", _MEM, "i64", "index = 1 : i32"),
        {
            _op("cute.leaf", "%m", _MEM, "i64", "index = 3 : i32"): "asks for leaf 3 of a layout with 3",
            _op("cute.leaf", "%m", _MEM, "i32", "index = 1 : i32"): "gives leaf 1 as i32: it has 64 bits",
        },
    ),
    "cute.cast_memref": (
        _op("cute.cast_memref", "%m", _MEM, _MEM.replace("16", "4")),
        {_op("cute.cast_memref", "%m", _MEM, _MEM.replace("{i64}", "")): "has leaves of [32, 64, 32] bits"},
    ),
    "cute.load": (
        _op("cute.load", "%g, %n", f"{_PTR}, i32", "vector<4xf32>", "alignment = 16 : i64"),
        {
            _op("cute.load", "%g, %n", f"{_PTR}, i32", "f16"): "accesses f16 in memory of type",
            _op("cute.load", "%g, %n", f"{_PTR}, i32", "f32", "aligned = 4 : i64"): "has no attribute 'aligned': it has alignment",
        },
    ),
    "cute.store": (
        _op("cute.store", "%x, %m, %w", f"f32, {_MEM}, i64"),
        {_op("cute.store", "%h, %m, %w", f"f16, {_MEM}, i64"): "accesses f16 in memory of type"},
    ),
    "cute.bounds": (
        _op("cute.bounds", "%g, %w, %w, %w", f"{_PTR}, i64, i64, i64", attributes="write = 1 : i32"),
        {_op("cute.bounds", "%g, %w", f"{_PTR}, i64", attributes="write = 1 : i32"): "has 1 numbers: three for each mode"},
    ),
    "cute.through": (
        _op("cute.through", "%s", _SMEM, _SMEM, 'swizzle = "3,4,3", absolute = 0 : i32, swizzle_name = "S<3,4,3>"'),
        {
            _op("cute.through", "%s", _SMEM, _SMEM, 'swizzle = "3,4", absolute = 0 : i32, swizzle_name = ""'):
            "has the swizzle '3,4'",
        },
    ),
    "cute.alloc_rmem": (
        _op("cute.alloc_rmem", result='!cute.ptr<f32, "rmem", 4>', attributes="count = 4 : i64"),
        {_op("cute.alloc_rmem", result='!cute.ptr<f32, "rmem", 4>', attributes="count = -1 : i64"): "is of -1 elements"},
    ),
    "cute.alloc_smem": (
        _op("cute.alloc_smem", result=_SMEM, attributes="bytes = 4 : i64, alignment = 16 : i64"),
        {
            _op("cute.alloc_smem", result=_SMEM, attributes="bytes = 4 : i64, alignment = 12 : i64"): "aligned to 12",
            _op("cute.alloc_smem", result=_PTR, attributes="bytes = 4 : i64, alignment = 16 : i64"): "gives a pointer to gmem",
        },
    ),
    "cute.dynamic_smem": (
        _op("cute.dynamic_smem", result=_SMEM), {_op("cute.dynamic_smem", result=_PTR): "gives a pointer to gmem"}
    ),
    "cute.undef": (_op("cute.undef", result="f32"), {_op("cute.undef", "%n", "i32", "f32"): "expects exactly 0 operands"}),
    "cute_nvgpu.driver_launch": _launch("cute_nvgpu.driver_launch", 'index = 0 : i32, name = "f"'),
    "cute_nvgpu.barrier": (
        _op("cute_nvgpu.barrier", "%one, %zero", "i32, i32"),
        {
            _op("cute_nvgpu.barrier", "%sixteen, %zero", "i32, i32"): "is of barrier 16: a block has the barriers 0 to 15",
            _op("cute_nvgpu.barrier", "%n, %odd", "i32, i32"): "is for 33 threads: a multiple of 32",
        },
    ),
    "cute_nvgpu.barrier_arrive": (
        _op("cute_nvgpu.barrier_arrive", "%n, %most", "i32, i32"),
        {_op("cute_nvgpu.barrier_arrive", "%n, %zero", "i32, i32"): "is for 0 threads"},
    ),
    "cute_nvgpu.sync_warp": (
        _op("cute_nvgpu.sync_warp", "%minus", "i32"), {_op("cute_nvgpu.sync_warp", "%zero", "i32"): "has an empty mask"}
    ),
    "cute_nvgpu.fence": (
        _op("cute_nvgpu.fence", attributes='kind = "acq_rel.gpu"'),
        {_op("cute_nvgpu.fence", attributes='kind = "acq_rel.warp"'): 'has the kind "acq_rel.warp": it is one of acq_rel.cta'},
    ),
    "cute_nvgpu.shuffle": (
        _op("cute_nvgpu.shuffle", "%x, %n, %n, %n", "f32, i32, i32, i32", "f32", 'kind = "bfly"'),
        {
            _op("cute_nvgpu.shuffle", "%h, %n, %n, %n", "f16, i32, i32, i32", "f16", 'kind = "bfly"'): "it moves 32 bits",
            _op("cute_nvgpu.shuffle", "%x, %n, %n, %n", "f32, i32, i32, i32", "f32", 'kind = "xor"'): 'has the kind "xor"',
            _op("cute_nvgpu.shuffle", "%x, %n, %zero, %n", "f32, i32, i32, i32", "f32", 'kind = "up"'): "has an empty mask",
        },
    ),
    "cute_nvgpu.vote": (
        _op("cute_nvgpu.vote", "%c, %n", "i1, i32", "i32", 'kind = "ballot"'),
        {_op("cute_nvgpu.vote", "%c, %n", "i1, i32", "i32", 'kind = "all"'): "'all' gives i32: it is an i1"},
    ),
    "cute_nvgpu.redux": (
        _op("cute_nvgpu.redux", "%x, %n", "f32, i32", "f32", 'kind = "fmax.abs.NaN"'),
        {_op("cute_nvgpu.redux", "%x, %n", "f32, i32", "f32", 'kind = "add"'): "'add' takes f32 and gives f32: it is of i32"},
    ),
    "cute_nvgpu.match": (
        _op("cute_nvgpu.match", "%w, %n", "i64, i32", "i32", 'kind = "all"'),
        {
            _op("cute_nvgpu.match", "%w, %n", "i64, i32", "i32", 'kind = "some"'): 'has the kind "some": it is one of any, all',
            _op("cute_nvgpu.match", "%small, %n", "i8, i32", "i32", 'kind = "all"'): "'i8' does not satisfy",
        },
    ),
    "cute_nvgpu.elect_one": (
        _op("cute_nvgpu.elect_one", result="i1"), {_op("cute_nvgpu.elect_one", result="i32"): "expected 'i1'"}
    ),
    "cute_nvgpu.warp_uniform": (
        _op("cute_nvgpu.warp_uniform", "%n", "i32", "i32"), {_op("cute_nvgpu.warp_uniform", "%w", "i64", "i64"): "expected 'i32'"}
    ),
    "cute_nvgpu.atomic_rmw": (
        _atomic("add", "%halves", "vector<2xf16>"),
        {
            _atomic("and", "%x", "f32"): "'and' of f32: add, min, max, exch are of",
            _atomic("add", "%small", "i8"): "'add' of i8: integers have 16, 32, 64 bits",
            _atomic("inc", "%w", "i64"): "'inc' of i64: integers have 32 bits",
            _atomic("max", "%halves", "vector<2xf16>"): "vectors are of 2 or 4 f32, or of 2, 4 or 8 f16 or bf16, and are added",
            _atomic("add", "%n", "i32", "seq_cst"): 'has the order "seq_cst"',
        },
    ),
    "cute_nvgpu.atomic_cas": (
        _op("cute_nvgpu.atomic_cas", "%s, %n, %n", f"{_SMEM}, i32, i32", "i32", 'order = "acq_rel", scope = "cta"'),
        {
            _op("cute_nvgpu.atomic_cas", "%s, %small, %small", f"{_SMEM}, i8, i8", "i8", 'order = "acq_rel", scope = "cta"'):
            "is of i8: elements have 16, 32 or 64 bits",
            _op("cute_nvgpu.atomic_cas", "%s, %n, %x", f"{_SMEM}, i32, f32", "f32", 'order = "acq_rel", scope = "cta"'):
            "all are of one type",
        },
    ),
    "cute_nvgpu.ordered_load": (
        _op("cute_nvgpu.ordered_load", "%g", _PTR, "vector<4xf32>", 'modifiers = "acquire.gpu.L2::evict_last"'),
        {
            _op("cute_nvgpu.ordered_load", "%g", _PTR, "vector<3xf32>", 'modifiers = ""'): "is one access of vector<3xf32>",
            _op("cute_nvgpu.ordered_load", "%g", _PTR, "f32", 'modifiers = "wb"'): "has the modifier 'wb'",
        },
    ),
    "cute_nvgpu.ordered_store": (
        _op("cute_nvgpu.ordered_store", "%g, %x", f"{_PTR}, f32", attributes='modifiers = "release.gpu"'),
        {_op("cute_nvgpu.ordered_store", "%g, %x", f"{_PTR}, f32", attributes='modifiers = "nc"'): "has the modifier 'nc'"},
    ),
    "cute_nvgpu.store_bulk": (
        _op("cute_nvgpu.store_bulk", "%s, %w", f"{_SMEM}, i64"),
        {
            "%odd_size = arith.constant 12 : i64\n" + _op("cute_nvgpu.store_bulk", "%s, %odd_size", f"{_SMEM}, i64"): "fills 12 bytes: a multiple of 8",
            _op("cute_nvgpu.store_bulk", "%g, %w", f"{_PTR}, i64"): "has its target in gmem: it is in smem",
        },
    ),
    "cute_nvgpu.multimem_ld_reduce": (
        _multimem("ld_reduce", "%g", "vector<4xi32>", 'kind = "add", type = "f16x2", acc = "acc::f32", order = "acquire", scope = "sys"'),
        {
            _multimem("ld_reduce", "%g", "i32", 'kind = "min", type = "f32", acc = "", order = "weak"'): ".min of f32",
            _multimem("ld_reduce", "%g", "i32", 'kind = "add", type = "f32", acc = "", order = "weak", scope = "sys"'): ".sys without an order that has one",
            _multimem("ld_reduce", "%g", "i64", 'kind = "add", type = "f32", acc = "", order = "weak"'): "has i64 for f32",
            _multimem("ld_reduce", "%s", "i32", 'kind = "add", type = "f32", acc = "", order = "weak"'): "has its word in smem",
        },
    ),
    "cute_nvgpu.multimem_st": (
        _op("cute_nvgpu.multimem_st", "%g, %words", f"{_PTR}, vector<4xi32>", attributes='type = "f32", order = "release", scope = "sys"'),
        {
            _op("cute_nvgpu.multimem_st", "%g, %n", f"{_PTR}, i32", attributes='type = "f32", order = "release"'): ".release without a scope",
            _op("cute_nvgpu.multimem_st", "%g, %words", f"{_PTR}, vector<4xi32>", attributes='type = "b32", order = "weak"'): "a vector of b32",
        },
    ),
    "cute_nvgpu.multimem_red": (
        _op("cute_nvgpu.multimem_red", "%g, %n", f"{_PTR}, i32", attributes='kind = "add", type = "u32", order = "release", scope = "gpu"'),
        {
            _op("cute_nvgpu.multimem_red", "%g, %n", f"{_PTR}, i32", attributes='kind = "and", type = "u32", order = "relaxed", scope = "gpu"'): ".and of u32",
            _op("cute_nvgpu.multimem_red", "%g, %words", f"{_PTR}, vector<4xi32>", attributes='kind = "add", type = "u32", order = "relaxed", scope = "gpu"'): "a vector of u32",
        },
    ),
    "cute_nvgpu.prefetch": (
        _op("cute_nvgpu.prefetch", "%g", _PTR, attributes='level = "L2"'),
        {
            _op("cute_nvgpu.prefetch", "%g", _PTR, attributes='level = "L3"'): 'has the level "L3"',
            _op("cute_nvgpu.prefetch", "%s", _SMEM, attributes='level = "L2"'): "has its line in smem: it is in gmem",
        },
    ),
    "cute_nvgpu.mbarrier_init": (
        _op("cute_nvgpu.mbarrier_init", "%s, %one", f"{_SMEM}, i32"),
        {
            _op("cute_nvgpu.mbarrier_init", "%s, %zero", f"{_SMEM}, i32"): "counts 0 arrivals: 1 to 1048575",
            _op("cute_nvgpu.mbarrier_init", "%g, %one", f"{_PTR}, i32"): "has its mbarrier in gmem: it is in smem",
        },
    ),
    "cute_nvgpu.mbarrier_inval": (
        _op("cute_nvgpu.mbarrier_inval", "%s", _SMEM), {_op("cute_nvgpu.mbarrier_inval", "%g", _PTR): "has its mbarrier in gmem"}
    ),
    "cute_nvgpu.mbarrier_arrive": (
        _op("cute_nvgpu.mbarrier_arrive", "%s, %one, %zero, %minus", f"{_SMEM}, i32, i32, i32", attributes='order = "release", scope = "cta"'),
        {
            _op("cute_nvgpu.mbarrier_arrive", "%s, %one, %huge, %minus", f"{_SMEM}, i32, i32, i32", attributes='order = "release", scope = "cta"'):
            "counts 1048576 bytes",
            _op("cute_nvgpu.mbarrier_arrive", "%s, %one, %zero, %minus", f"{_SMEM}, i32, i32, i32", attributes='order = "release", scope = "gpu"'):
            'has the scope "gpu": it is one of cta, cluster',
        },
    ),
    "cute_nvgpu.mbarrier_expect_tx": (
        _op("cute_nvgpu.mbarrier_expect_tx", "%s, %n, %minus", f"{_SMEM}, i32, i32", attributes='scope = "cta"'),
        {_op("cute_nvgpu.mbarrier_expect_tx", "%s, %huge, %minus", f"{_SMEM}, i32, i32", attributes='scope = "cta"'): "counts 1048576 bytes"},
    ),
    "cute_nvgpu.mbarrier_try_wait": (
        _op("cute_nvgpu.mbarrier_try_wait", "%s, %n, %n", f"{_SMEM}, i32, i32", "i1"),
        {
            _op("cute_nvgpu.mbarrier_try_wait", "%g, %n", f"{_PTR}, i32", "i1"): "has its mbarrier in gmem",
            _op("cute_nvgpu.mbarrier_try_wait", "%s, %n, %n, %n", f"{_SMEM}, i32, i32, i32", "i1"): "more than one limit",
        },
    ),
    "cute_nvgpu.mbarrier_test_wait": _wait("mbarrier_test_wait"),
    "cute_nvgpu.mbarrier_wait": _wait("mbarrier_wait", "()"),
    "cute_nvgpu.cp_async": (
        _op("cute_nvgpu.cp_async", "%s, %g, %n", f"{_SMEM}, {_PTR}, i32", attributes='size = 16 : i32, cache = "cg", prefetch = 128 : i32, hint = "L2::evict_last"'),
        {
            _op("cute_nvgpu.cp_async", "%s, %g, %n", f"{_SMEM}, {_PTR}, i32", attributes='size = 8 : i32, cache = "cg"'): "'cg' copies 8 bytes",
            _op("cute_nvgpu.cp_async", "%s, %g, %n", f"{_SMEM}, {_PTR}, i32", attributes='size = 12 : i32, cache = "ca"'): "has the size 12 : i32",
            _op("cute_nvgpu.cp_async", "%s, %g, %n", f"{_SMEM}, {_PTR}, i32", attributes='size = 4 : i32, cache = "ca", prefetch = 32 : i32'): "has the prefetch 32 : i32",
            _op("cute_nvgpu.cp_async", "%s, %g, %n", f"{_SMEM}, {_PTR}, i32", attributes='size = 4 : i32, cache = "ca", hnt = "x"'): "has no attribute 'hnt': it has size, cache, hint, prefetch",
            _op("cute_nvgpu.cp_async", "%s, %g, %sixteen", f"{_SMEM}, {_PTR}, i32", attributes='size = 4 : i32, cache = "ca"'): "reads 16 bytes of 4",
            _op("cute_nvgpu.cp_async", "%g, %g, %n", f"{_PTR}, {_PTR}, i32", attributes='size = 4 : i32, cache = "ca"'): "has its target in gmem: it is in smem",
        },
    ),
    "cute_nvgpu.cp_async_commit": (
        _op("cute_nvgpu.cp_async_commit"), {_op("cute_nvgpu.cp_async_commit", "%n", "i32"): "expects exactly 0 operands"}
    ),
    "cute_nvgpu.cp_async_wait": (
        _op("cute_nvgpu.cp_async_wait", attributes="count = 0 : i32"),
        {_op("cute_nvgpu.cp_async_wait", attributes="count = -1 : i32"): "leaves -1 groups"},
    ),
    "cute_nvgpu.cp_async_mbarrier_arrive": (
        _op("cute_nvgpu.cp_async_mbarrier_arrive", "%s", _SMEM),
        {_op("cute_nvgpu.cp_async_mbarrier_arrive", "%g", _PTR): "has its mbarrier in gmem"},
    ),
    "cute_nvgpu.cp_async_bulk_commit": (
        _op("cute_nvgpu.cp_async_bulk_commit"), {_op("cute_nvgpu.cp_async_bulk_commit", "%n", "i32"): "expects exactly 0 operands"}
    ),
    "cute_nvgpu.cp_async_bulk_wait": (
        _op("cute_nvgpu.cp_async_bulk_wait", attributes="count = 1 : i32, read = true"),
        {_op("cute_nvgpu.cp_async_bulk_wait", attributes="count = -2 : i32"): "leaves -2 groups"},
    ),
    "cute_nvgpu.bulk_load": (
        _bulk_load("%s, %g, %sixteen, %s", attributes="multicast = true, hint = true"),
        {
            _bulk_load("%s, %g, %twelve, %s"): "copies 12 bytes: multiples of 16",
            _bulk_load("%s, %s, %sixteen, %s"): "has its source in smem: it is in gmem",
        },
    ),
    "cute_nvgpu.bulk_store": (
        _op("cute_nvgpu.bulk_store", "%g, %s, %n, %w", f"{_PTR}, {_SMEM}, i32, i64", attributes='reduction = "add", element = "bf16", hint = true'),
        {
            _op("cute_nvgpu.bulk_store", "%g, %s, %twelve, %w", f"{_PTR}, {_SMEM}, i32, i64"): "copies 12 bytes: multiples of 16",
            _op("cute_nvgpu.bulk_store", "%g, %s, %n, %w", f"{_PTR}, {_SMEM}, i32, i64", attributes='reduction = "max", element = "f32"'):
            "reduces by max of f32: of u32, s32, u64, s64, f16, bf16",
            _op("cute_nvgpu.bulk_store", "%g, %s, %n, %w", f"{_PTR}, {_SMEM}, i32, i64", attributes='reduction = "add"'): "without an element type",
        },
    ),
    "cute_nvgpu.bulk_send": (
        _op("cute_nvgpu.bulk_send", "%any, %s, %n, %any", f"{_ANY}, {_SMEM}, i32, {_ANY}", attributes='reduction = "add", element = "u64"'),
        {
            _op("cute_nvgpu.bulk_send", "%g, %s, %n, %any", f"{_PTR}, {_SMEM}, i32, {_ANY}"): "has its target in gmem: it is in smem",
            _op("cute_nvgpu.bulk_send", "%any, %s, %n, %any", f"{_ANY}, {_SMEM}, i32, {_ANY}", attributes='reduction = "add", element = "f32"'):
            "reduces by add of f32: of u32, s32, u64",
        },
    ),
    "cute_nvgpu.bulk_prefetch": (
        _op("cute_nvgpu.bulk_prefetch", "%g, %sixteen, %w", f"{_PTR}, i32, i64", attributes="hint = true"),
        {_op("cute_nvgpu.bulk_prefetch", "%s, %sixteen, %w", f"{_SMEM}, i32, i64"): "has its source in smem: it is in gmem"},
    ),
    "cute_nvgpu.store_async": (
        _op("cute_nvgpu.store_async", "%any, %words, %any", f"{_ANY}, vector<4xi32>, {_ANY}"),
        {
            _op("cute_nvgpu.store_async", "%any, %pair, %any", f"{_ANY}, vector<2xf32>, {_ANY}"): "stores vector<2xf32>: a vector of 1, 2 or 4 i32",
            _op("cute_nvgpu.store_async", "%g, %words, %any", f"{_PTR}, vector<4xi32>, {_ANY}"): "has its target in gmem",
        },
    ),
    "cute_nvgpu.cache_policy": (
        _op("cute_nvgpu.cache_policy", result="i64", attributes='priority = "L2::evict_first"'),
        {_op("cute_nvgpu.cache_policy", result="i64", attributes='priority = "L1::evict_first"'): "has the priority"},
    ),
    "cute_nvgpu.tensor_map_encode": _encode(),
    "cute_nvgpu.tensor_map_address": (
        _op("cute_nvgpu.tensor_map_address", "%map", "!cute_nvgpu.tensor_map", _ANY),
        {_op("cute_nvgpu.tensor_map_address", "%g", _PTR, _ANY): "it takes a tensor map"},
    ),
    "cute_nvgpu.tma_load": _tma_load(),
    "cute_nvgpu.tma_store": _tma_store(),
    "cute_nvgpu.tma_prefetch": (
        _COORDINATES + _op("cute_nvgpu.tma_prefetch", "%any, %at, %off, %w", f"{_ANY}, {_FOUR}, {_TWO}, i64"),
        {
            _COORDINATES + _op("cute_nvgpu.tma_prefetch", "%any, %none, %none, %w", f"{_ANY}, tuple<>, tuple<>, i64"): "takes its coordinates as a tuple",
            _COORDINATES + _op("cute_nvgpu.tma_prefetch", "%any, %one_at, %off, %w", f"{_ANY}, tuple<i32>, {_TWO}, i64"): "has 2 offsets: two less than coordinates",
        },
    ),
    "cute_nvgpu.tensor_map_prefetch": (
        _op("cute_nvgpu.tensor_map_prefetch", "%any", _ANY),
        {_op("cute_nvgpu.tensor_map_prefetch", "%s", _SMEM): "has its tensor map in smem: it is in gmem"},
    ),
    "cute_nvgpu.tensor_map_replace": (
        _replace("global_stride", "%w", "i64", 3),
        {
            _replace("global_address", "%n", "i32"): "has the global_address as i32: it is i64",
            _replace("box_dim", "%w", "i64"): "has the box_dim as i64: it is i32",
            _replace("box_dim", "%n", "i32", 5): "is of mode 5: 0 to 4",
            _replace("size", "%n", "i32"): 'has the field "size": it is one of global_address',
        },
    ),
    "cute_nvgpu.tensor_map_publish": (
        _op("cute_nvgpu.tensor_map_publish", "%g, %s", f"{_PTR}, {_SMEM}"),
        {_op("cute_nvgpu.tensor_map_publish", "%s, %g", f"{_SMEM}, {_PTR}"): "has its target in smem: it is in gmem"},
    ),
    "cute_nvgpu.tensor_map_release": (
        _op("cute_nvgpu.tensor_map_release", attributes='scope = "gpu"'),
        {_op("cute_nvgpu.tensor_map_release", attributes='scope = "warp"'): 'has the scope "warp": it is one of cta'},
    ),
    "cute_nvgpu.tensor_map_acquire": (
        _op("cute_nvgpu.tensor_map_acquire", "%any", _ANY, attributes='scope = "gpu"'),
        {_op("cute_nvgpu.tensor_map_acquire", "%s", _SMEM, attributes='scope = "gpu"'): "has its tensor map in smem: it is in gmem"},
    ),
    "cute_nvgpu.cluster_index": (
        _op("cute_nvgpu.cluster_index", result="i32", attributes='which = "cluster_idx", dim = 2 : i32'),
        {_op("cute_nvgpu.cluster_index", result="i32", attributes='which = "rank", dim = 2 : i32'): 'has the which "rank"'},
    ),
    "cute_nvgpu.cluster_arrive": (
        _op("cute_nvgpu.cluster_arrive", attributes="relaxed = true, aligned = true"),
        {_op("cute_nvgpu.cluster_arrive", attributes="release = true"): "has no attribute 'release': it has relaxed, aligned"},
    ),
    "cute_nvgpu.cluster_wait": (
        _op("cute_nvgpu.cluster_wait"), {_op("cute_nvgpu.cluster_wait", "%n", "i32"): "expects exactly 0 operands"}
    ),
    "cute_nvgpu.map_shared": (
        _op("cute_nvgpu.map_shared", "%s, %n", f"{_SMEM}, i32", _ANY),
        {
            _op("cute_nvgpu.map_shared", "%s, %n", f"{_SMEM}, i32", _SMEM): "gives a pointer to smem",
            _op("cute_nvgpu.map_shared", "%s, %sixteen", f"{_SMEM}, i32", _ANY): "is of block 16: a cluster has at most 16",
        },
    ),
    "cute_nvgpu.prmt": (
        _op("cute_nvgpu.prmt", "%n, %n, %n", "i32, i32, i32", "i32"),
        {_op("cute_nvgpu.prmt", "%n, %n, %w", "i32, i32, i64", "i32"): "expected 'i32'"},
    ),
    "cute_nvgpu.lop3": (
        _op("cute_nvgpu.lop3", "%n, %n, %n", "i32, i32, i32", "i32", "lut = 150 : i32"),
        {_op("cute_nvgpu.lop3", "%n, %n, %n", "i32, i32, i32", "i32", "lut = 256 : i32"): "has the table 256: it has 8 bits"},
    ),
    "cute_nvgpu.approx": (
        _op("cute_nvgpu.approx", "%x", "f32", "f32", 'kind = "tanh"'),
        {_op("cute_nvgpu.approx", "%x", "f32", "f32", 'kind = "exp"'): 'has the kind "exp": it is one of rcp'},
    ),
    "cute_nvgpu.packed_f32x2": (
        _op("cute_nvgpu.packed_f32x2", "%pair, %pair, %pair", ", ".join(["vector<2xf32>"] * 3), "vector<2xf32>", 'kind = "fma", rounding = "rz", ftz = false'),
        {
            _op("cute_nvgpu.packed_f32x2", "%sums, %sums, %sums", ", ".join(["vector<4xf32>"] * 3), "vector<4xf32>", 'kind = "fma", rounding = "rz", ftz = false'):
            "is of vector<4xf32>: all are vector<2xf32>",
        },
    ),
    "cute_nvgpu.clock": (
        _op("cute_nvgpu.clock", result="i64", attributes='which = "globaltimer"'),
        {_op("cute_nvgpu.clock", result="i64", attributes='which = "clock"'): "'clock' gives i64: it is an i32"},
    ),
    "cute_nvgpu.nanosleep": (
        _op("cute_nvgpu.nanosleep", "%n", "i32"), {_op("cute_nvgpu.nanosleep", "%w", "i64"): "expected 'i32'"}
    ),
    "cute_nvgpu.trace_mark": (
        _op("cute_nvgpu.trace_mark", "%n", "i32", attributes='event = "load", phase = "begin", kind = "range"'),
        {
            _op("cute_nvgpu.trace_mark", attributes='event = "load", phase = "now", kind = "range"'): 'has the phase "now": it is one of begin',
            _op("cute_nvgpu.trace_mark", attributes='event = "", phase = "begin", kind = "range"'): "has no name, and is a 'begin'",
            _op("cute_nvgpu.trace_mark", "%n, %n", "i32, i32", attributes='event = "load", phase = "begin", kind = "range"'):
            "has 2 payloads: at most one",
        },
    ),
    "cute_nvgpu.trace_start": (
        _op("cute_nvgpu.trace_start", attributes=_TRACE.format(-1)),
        {_op("cute_nvgpu.trace_start", attributes=_TRACE.format(32)): "has the lane 32: it is one of 0 to 31"},
    ),
    "cute_nvgpu.trace_room": (_op("cute_nvgpu.trace_room"), {_op("cute_nvgpu.trace_room", "%n", "i32"): "expects exactly 0 operands"}),
    "cute_nvgpu.trace_stop": (_op("cute_nvgpu.trace_stop"), {_op("cute_nvgpu.trace_stop", "%n", "i32"): "expects exactly 0 operands"}),
    "cute_nvgpu.set_max_register": (
        _op("cute_nvgpu.set_max_register", attributes='count = 232 : i32, action = "inc"'),
        {_op("cute_nvgpu.set_max_register", attributes='count = 30 : i32, action = "inc"'): "is to 30 registers: a multiple of 8"},
    ),
    "cute_nvgpu.grid_dependency": (
        _op("cute_nvgpu.grid_dependency", attributes='action = "wait"'),
        {_op("cute_nvgpu.grid_dependency", attributes='action = "go"'): 'has the action "go": it is one of wait'},
    ),
    "cute_nvgpu.dynamic_smem_size": (
        _op("cute_nvgpu.dynamic_smem_size", result="i32"), {_op("cute_nvgpu.dynamic_smem_size", result="i64"): "expected 'i32'"}
    ),
    "cute_nvgpu.mma_sync": (
        _mma(16, 8, 16, "f16", "f16"),
        {
            _mma(16, 8, 32, "f16", "f16"): "there is no mma.sync m16n8k32 of f16 and f16 with accumulators in f32 (shapes of f16: m16n8k8, m16n8k16",
            _mma(16, 8, 16, "f16", "bf16"): "there is no mma.sync m16n8k16 of f16 and bf16",
            _mma(16, 8, 16, "f16", "f16", "%two", "vector<2xi32>"): "with accumulators in s32",
            _mma(16, 8, 8, "f16", "f16"): "has A of vector<4xi32>: a lane holds 64 bits of it",
            _mma(16, 8, 16, "f16", "f16", "%pair", "vector<2xf32>"): "has C of vector<2xf32>: a lane holds 4 elements",
            _mma(16, 8, 16, "e2m1", "e4m3"): "k is 16: mma.sync of kind::f8f6f4 takes 32",
        },
    ),
    "cute_nvgpu.mma_block_scale": (
        _scaled_mma("mxf4nvf4", 64, "e2m1", "e2m1", "ue4m3", 16),
        {
            _scaled_mma("mxf8f6f4", 64, "e4m3", "e2m1", "ue8m0", 32): "k is 64: mma.sync of kind::mxf8f6f4 takes 32",
            _scaled_mma("mxf4", 64, "e2m1", "e2m1", "ue4m3", 32): "scale is ue4m3: mma.sync of kind::mxf4 takes ue8m0",
            _scaled_mma("mxf4", 64, "e2m1", "e2m1", "ue8m0", 16): "vector is 16: mma.sync of kind::mxf4 with scale factors of ue8m0",
            _scaled_mma("mxf4", 64, "e4m3", "e2m1", "ue8m0", 32): "a is e4m3: mma.sync of kind::mxf4 takes e2m1",
            _scaled_mma("mxf4", 64, "e2m1", "e2m1", "ue8m0", 32, 1): "has byte_a=1: 2 scale factors start at a multiple of 2 bytes",
            _scaled_mma("mxf4", 64, "e2m1", "e2m1", "ue8m0", 32, c="%pair"): "has C of vector<2xf32>: it is vector<4xf32>",
        },
    ),
    "cute_nvgpu.ldmatrix": (
        _op("cute_nvgpu.ldmatrix", "%s", _SMEM, "vector<4xi32>", "count = 4 : i32, transpose = true"),
        {
            _op("cute_nvgpu.ldmatrix", "%s", _SMEM, "vector<4xi32>", "count = 2 : i32"): "has registers of vector<4xi32>: it has 2 i32",
            _op("cute_nvgpu.ldmatrix", "%g", _PTR, "vector<4xi32>", "count = 4 : i32"): "has its rows in gmem: it is in smem",
            _op("cute_nvgpu.ldmatrix", "%s", _SMEM, "vector<4xi32>", "count = 4 : i32, transposed = true"): "has no attribute 'transposed'",
            _op("cute_nvgpu.ldmatrix", "%s", _SMEM, "vector<4xi32>", "count = 4 : i32, unpack = 5 : i32"): "has the unpack 5 : i32",
            _op("cute_nvgpu.ldmatrix", "%s", _SMEM, "vector<4xi32>", "count = 4 : i32, unpack = 4 : i32, transpose = true"): "transposes and unpacks",
        },
    ),
    "cute_nvgpu.ldmatrix_bytes": (
        _op("cute_nvgpu.ldmatrix_bytes", "%s", _SMEM, "vector<4xi32>", "count = 2 : i32, unpack = 6 : i32"),
        {_op("cute_nvgpu.ldmatrix_bytes", "%s", _SMEM, "vector<8xi32>", "count = 4 : i32"): "has the count 4 : i32: it is one of 1, 2"},
    ),
    "cute_nvgpu.stmatrix": _matrix_store("stmatrix"),
    "cute_nvgpu.stmatrix_bytes": _matrix_store("stmatrix_bytes"),
    "cute_nvgpu.matrix_descriptor": (
        _matrix_descriptor(),
        {
            _matrix_descriptor("%g"): "has its operand in gmem: it is in smem",
            _matrix_descriptor(leading=8): "has leading=8: a multiple of 16 below 262144",
            _matrix_descriptor(swizzle="256b"): 'has the swizzle "256b": it is one of none, 128b, 64b, 32b',
        },
    ),
    "cute_nvgpu.wgmma": (
        _wgmma(256, 16, "f16", "f16", b_major="mn"),
        {
            _wgmma(260, 16, "f16", "f16"): "there is no wgmma m64n260k16 of f16 and f16 with accumulators in f32",
            _wgmma(64, 32, "s8", "u8"): "with accumulators in f32",
            _wgmma(64, 32, "e4m3", "e5m2", d="%bytes"): "has an accumulator of i8: f32, f16, i32",
            _wgmma(64, 32, "e4m3", "e5m2", b_major="mn"): "has B of e5m2 contiguous along N: only 16-bit elements are",
            _wgmma(64, 16, "f16", "f16", a="%r", a_major="mn"): "has A in registers contiguous along M",
            _wgmma(64, 16, "f16", "f16", a="%s"): "has its A in smem: it is in rmem",
            _wgmma(64, 16, "f16", "f16", d="%g"): "has its accumulator in gmem: it is in rmem",
        },
    ),
    "cute_nvgpu.hold_registers": (
        _op("cute_nvgpu.hold_registers", "%r", ARGUMENTS["%r"], attributes="count = 4 : i32"),
        {_op("cute_nvgpu.hold_registers", "%s", _SMEM, attributes="count = 4 : i32"): "has its elements in smem: it is in rmem"},
    ),
    "cute_nvgpu.wgmma_fence": (
        _op("cute_nvgpu.wgmma_fence"), {_op("cute_nvgpu.wgmma_fence", "%n", "i32"): "expects exactly 0 operands"}
    ),
    "cute_nvgpu.wgmma_commit": (
        _op("cute_nvgpu.wgmma_commit"), {_op("cute_nvgpu.wgmma_commit", "%n", "i32"): "expects exactly 0 operands"}
    ),
    "cute_nvgpu.wgmma_wait": (
        _op("cute_nvgpu.wgmma_wait", attributes="count = 7 : i32"),
        {_op("cute_nvgpu.wgmma_wait", attributes="count = 8 : i32"): "leaves 8 groups: 0 to 7"},
    ),
    "cute_nvgpu.tcgen05_alloc": _columns("cute_nvgpu.tcgen05_alloc", "%s"),
    "cute_nvgpu.tcgen05_dealloc": _columns("cute_nvgpu.tcgen05_dealloc", "%n"),
    "cute_nvgpu.tcgen05_relinquish_alloc_permit": (
        _op("cute_nvgpu.tcgen05_relinquish_alloc_permit", attributes="cta_group = 1 : i32"),
        {_op("cute_nvgpu.tcgen05_relinquish_alloc_permit", attributes="cta_group = 4 : i32"): "has the cta_group 4 : i32"},
    ),
    "cute_nvgpu.tcgen05_matrix_descriptor": (
        _tcgen05_descriptor(),
        {
            _tcgen05_descriptor("%g"): "has its operand in gmem: it is in smem",
            _tcgen05_descriptor(stride=1 << 18): "has stride=262144: a multiple of 16 below 262144",
            _tcgen05_descriptor(chunks="%s", swizzle="128b"): "has a next chunk with leading=16 and swizzle 128b",
            _tcgen05_descriptor(chunks="%s", leading=0): "has a next chunk with leading=0 and swizzle 128b_32b",
            _tcgen05_descriptor(chunks="%g", leading=0, swizzle="128b"): "has its next chunk in gmem: it is in smem",
            _tcgen05_descriptor(chunks="%s %s", leading=0, swizzle="128b"): "has 2 next chunks: none or one",
            _tcgen05_descriptor(swizzle="256b"): 'has the swizzle "256b": it is one of none, 128b_32b, 128b, 64b, 32b',
        },
    ),
    "cute_nvgpu.tcgen05_mma": (
        _tcgen05_mma(masks=8, group=2, more=', scale_input_d = 15 : i32, collector = "fill"'),
        {
            _tcgen05_mma(masks=8): "has 8 masks of disable_output_lane: with cta_group 1 it has 4",
            _tcgen05_mma(masks=4, group=2): "has 4 masks of disable_output_lane: with cta_group 2 it has 8",
            _tcgen05_mma(more=", scale_input_d = 16 : i32"): "has scale_input_d=16: 0 to 15",
            _tcgen05_mma(kind="f8f6f4", more=", scale_input_d = 1 : i32"): "has scale_input_d with kind f8f6f4",
            _tcgen05_mma(more=", a_shift = true"): "has a_shift and A in shared memory",
            _tcgen05_mma("%n", more=', a_shift = true, collector = "use"'): "has a_shift and the collector 'use'",
            _tcgen05_mma(kind="mxf4"): 'has the kind "mxf4": it is one of f16, tf32, f8f6f4, i8',
            _tcgen05_mma(more=', collector = "keep"'): 'has the collector "keep": it is one of fill, use, lastuse, discard',
            _tcgen05_mma(idesc="%huge"): "has the instruction descriptor 0x00100000, whose m is 0: tcgen05.mma of kind::f16",
            _tcgen05_mma(kind="tf32", idesc="%huge"): "has the instruction descriptor 0x00100000, whose a is 0",
            _tcgen05_mma(idesc="%spare"): "descriptor 0x04020018, of which the reserved bits 0x00000008 are not 0",
            _tcgen05_mma("%half"): "does not satisfy the constraint",
        },
    ),
    "cute_nvgpu.mma_sp": (
        _mma_sp(32, "f16", "f16", 1),
        {
            _mma_sp(32, "f16", "f16", 2): "has the selector 2: m16n8k32 of f16 has 0, 1",
            _mma_sp(8, "f16", "f16"): "there is no mma.sp m16n8k8 of f16 and f16 with accumulators in f32 (shapes of f16: m16n8k16, m16n8k32",
            _mma_sp(32, "f16", "f16", words="%two"): "a lane holds 128 bits of it",
            _mma_sp(32, "f16", "f16", c="%pair"): "a lane holds 4 elements of it",
            _mma_sp(32, "f16", "f16", 4): "has the selector 4 : i32: it is one of 0, 1, 2, 3",
        },
    ),
    "cute_nvgpu.tcgen05_mma_sp": (
        _tcgen05_mma_sp("%n", masks=4, more=', collector = "lastuse", a_shift = true'),
        {
            _tcgen05_mma_sp(masks=8): "has 8 masks of disable_output_lane: with cta_group 1 it has 4",
            _tcgen05_mma_sp(kind="i8", more=", scale_input_d = 1 : i32"): "has scale_input_d with kind i8: it is for f16",
            _tcgen05_mma_sp(kind="mxf4"): 'has the kind "mxf4": it is one of f16, tf32, f8f6f4, i8',
            _tcgen05_mma_sp(idesc="%huge"): "descriptor 0x00100000, whose bit 2 is 0: it is 1 for tcgen05.mma.sp, whose A",
        },
    ),
    "cute_nvgpu.tcgen05_mma_block_scale": (
        _tcgen05_mma_block_scale("mxf4nvf4", 16, "%n"),
        {
            _tcgen05_mma_block_scale("mxf8f6f4", 16): "has scales for 16 elements: kind mxf8f6f4 has them for 32",
            _tcgen05_mma_block_scale("mxf4", 16): "has scales for 16 elements: kind mxf4 has them for 32",
            _tcgen05_mma_block_scale("mxf4", 32, idesc="%huge"): "has the instruction descriptor 0x00100000, whose a is 0",
            _tcgen05_mma_block_scale("mxf4nvf4", 64): "has the block 64 : i32: it is one of 16, 32",
            _tcgen05_mma_block_scale("f8f6f4", 32): 'has the kind "f8f6f4": it is one of mxf8f6f4, mxf4, mxf4nvf4',
        },
    ),
    "cute_nvgpu.tcgen05_mma_ws": (
        _tcgen05_mma_ws(),
        {
            _tcgen05_mma_ws(masks=2): "has 2 zero-column masks: none or one",
            _tcgen05_mma_ws(collector="a::fill"): 'has the collector "a::fill": it is one of b0::fill',
            _tcgen05_mma_ws("mxf4"): 'has the kind "mxf4": it is one of f16, tf32, f8f6f4, i8',
            _tcgen05_mma_ws(idesc="%huge"): "whose m is 0: tcgen05.mma.ws of kind::f16",
        },
    ),
    "cute_nvgpu.tcgen05_cp": (
        _tcgen05_cp("32x128b.warpx4", "b4x16_p64"),
        {
            _tcgen05_cp("32x128b", "b4x16_p64"): 'has the shape "32x128b": it is one of 128x256b',
            _tcgen05_cp("128x256b", "b4x16_p32"): 'has the format "b4x16_p32": it is one of b6x16_p32, b4x16_p64',
        },
    ),
    "cute_nvgpu.tcgen05_shift": (
        _op("cute_nvgpu.tcgen05_shift", "%n", "i32", attributes="cta_group = 1 : i32"),
        {_op("cute_nvgpu.tcgen05_shift", "%n", "i32", attributes="cta_group = 0 : i32"): "has the cta_group 0 : i32"},
    ),
    "cute_nvgpu.tcgen05_commit": (
        _tcgen05_commit(),
        {
            _tcgen05_commit("%g", 0): "has its mbarrier in gmem: it is in smem",
            _tcgen05_commit(masks=2): "has 2 masks: none or one",
        },
    ),
    "cute_nvgpu.tcgen05_ld": (
        _tcgen05_ld("16x32bx2", 32, 32, ", split = 16 : i32, pack = true"),
        {
            _tcgen05_ld("16x128b", 128, 256): "repeats 16x128b 128 times: 1, 2, 4, 8, 16, 32, 64",
            _tcgen05_ld("16x256b", 64, 256): "repeats 16x256b 64 times: 1, 2, 4, 8, 16, 32",
            _tcgen05_ld("32x32b", 3, 3): "repeats 32x32b 3 times",
            _tcgen05_ld("16x256b", 2, 2): "has registers of vector<2xi32>: a vector of 8 i32",
            _tcgen05_ld("16x32bx2", 2, 2): "has no split with 16x32bx2: 16x32bx2 alone has one",
            _tcgen05_ld("32x32b", 2, 2, ", split = 16 : i32"): "has split=16 with 32x32b: 16x32bx2 alone has one",
            _tcgen05_ld("16x32bx2", 2, 2, ", split = -1 : i32"): "has split=-1",
            _tcgen05_ld("8x8b", 2, 2): 'has the shape "8x8b": it is one of 32x32b',
        },
    ),
    "cute_nvgpu.tcgen05_ld_red": (
        _tcgen05_ld_red("32x32b", 32, 33, 'type = "f32", abs = true, nan = true'),
        {
            _tcgen05_ld_red("32x32b", 1, 2): "repeats 1 time: a reduction is over 2 columns or more",
            _tcgen05_ld_red("16x64b", 2, 3): 'has the shape "16x64b": it is one of 32x32b, 16x32bx2',
            _tcgen05_ld_red("32x32b", 4, 5, 'type = "u32", abs = true'): "has abs or nan with u32: they are for f32",
            _tcgen05_ld_red("32x32b", 4, 4): "has registers of vector<4xi32>: a vector of 5 i32",
        },
    ),
    "cute_nvgpu.tcgen05_st": (
        _tcgen05_st("16x256b", 1, more=", unpack = true"),
        {
            _tcgen05_st("32x32b", 2): "has registers of vector<4xi32>: a vector of 2 i32",
            _tcgen05_st("32x32b", 4, more=", pack = true"): "has no attribute 'pack'",
            _tcgen05_st("32x32b", 4, "%sums"): "has registers of vector<4xf32>: a vector of 4 i32",
        },
    ),
    "cute_nvgpu.tcgen05_wait": _of_a_kind("cute_nvgpu.tcgen05_wait", "ld", "st"),
    "cute_nvgpu.tcgen05_fence": _of_a_kind("cute_nvgpu.tcgen05_fence", "before_thread_sync", "after_thread_sync"),
    "cute_nvgpu.clc_try_cancel": (
        _op("cute_nvgpu.clc_try_cancel", "%s, %s", f"{_SMEM}, {_SMEM}", attributes="multicast = true"),
        {
            _op("cute_nvgpu.clc_try_cancel", "%g, %s", f"{_PTR}, {_SMEM}"): "has its response in gmem: it is in smem",
            _op("cute_nvgpu.clc_try_cancel", "%s, %g", f"{_SMEM}, {_PTR}"): "has its mbarrier in gmem: it is in smem",
        },
    ),
    "cute_nvgpu.clc_query_cancel": (
        _op("cute_nvgpu.clc_query_cancel", "%s", _SMEM, "vector<4xi32>"),
        {
            _op("cute_nvgpu.clc_query_cancel", "%g", _PTR, "vector<4xi32>"): "has its response in gmem: it is in smem",
            _op("cute_nvgpu.clc_query_cancel", "%s", _SMEM, "vector<2xi32>"): "returns vector<2xi32>: vector<4xi32>",
        },
    ),
}  # fmt: skip
