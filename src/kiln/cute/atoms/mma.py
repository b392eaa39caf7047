"""MMA atoms and tiled MMAs: which thread holds which values of A (M, K), B (N, K) and C (M, N), and `gemm`.

An atom is the smallest D = A * B + C an operation does: `thr_id` threads with the values that `tv_layout_A/B/C` name,
maps (thread, value) -> index in the (column-major) operand of one call. A tiled MMA repeats an atom over M, N and K.
New operations subclass `MmaOp` and give their `MmaTrait`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.trace import at_one_location
from ..layout.algebra import complement, composition, filter_zeros
from ..layout.int_tuple import pretty_str, product, wrap
from ..layout.inverses import right_inverse
from ..layout.layout import Layout, make_layout, rank, size
from ..layout.modes import UNIT, append, slice_
from ..layout.picture import Drawn
from ..layout.tiling import logical_divide, tiled_product, zipped_divide
from ..tensor.iterator import AddressSpace
from ..tensor.tensor import TracedTensor, make_fragment_like, make_rmem_tensor, make_tensor
from ..tensor.vector_access import Registers
from .atom import OPERAND_MODES, Atom, Op, ThreadSlice, Trait, accepted_keywords, tile_of_layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..tensor.pointer import Pointer
    from ..tensor.tensor import Tensor

T = TypeVar("T")

__all__ = [
    "MmaAtom",
    "MmaOp",
    "MmaTrait",
    "RegisterMmaTrait",
    "ThrMma",
    "TiledMma",
    "gemm",
    "make_mma_atom",
    "make_tiled_mma",
    "mma_atom_call",
]


class MmaTrait(Trait):
    """A multiply-accumulate operation: its shape, its threads, and the values each of them holds."""

    whole_tiles: ClassVar[bool] = True
    """Whether operands in shared memory have whole tiles: threads would read the rest past the end."""

    def __init__(
        self,
        shape_mnk: tuple[int, int, int],
        thr_id: Layout,
        layouts_tv: tuple[Layout, Layout, Layout],
        types: tuple[object, object, object],
    ) -> None:
        self.shape_mnk = shape_mnk
        self.thr_id = thr_id
        self.layouts_tv: dict[str, Layout] = dict(zip("ABC", layouts_tv, strict=True))
        self._values = {name: size(layout[1]) for name, layout in self.layouts_tv.items()}
        """The number of values of an operand that a thread holds."""
        self.types: dict[str, Any] = dict(zip("ABC", types, strict=True))

    def make_fragment(self, operand: str, of: Any) -> Any:
        """Return the operand of `gemm` for a partitioned tensor, or for a partitioned shape."""
        raise NotImplementedError

    def call(self, d: Any, a: Any, b: Any, c: Any, **kwargs: Any) -> None:
        """Do one call: the tensors hold the values of one atom."""
        raise NotImplementedError

    def gemm(self, d: Any, a: Any, b: Any, c: Any, rows: int, columns: int, depth: int | None, **kwargs: Any) -> None:
        """Do all calls of (V, M, K) x (V, N, K) => (V, M, N); without the mode K `depth` is None."""
        for k in (None,) if depth is None else range(depth):
            for m, n in calls_in_order(rows, columns):
                start = d if k else c
                self.call(d[None, m, n], _part(a, m, k), _part(b, n, k), start[None, m, n], **kwargs)


def _without_repeats(layout: object, values: int) -> Layout | None:
    """Return a layout whose mode 0 has each value once, if it then has so many: programs divide modes of one element."""
    if not isinstance(layout, Layout) or not layout.is_static():
        return None
    first, *others = (layout[i] for i in range(rank(layout)))
    first = filter_zeros(first)
    return make_layout([first, *others]) if product(first.shape) == values else None


class RegisterMmaTrait(MmaTrait):
    """An operation whose operands all lie in registers, each a vector of a thread's values."""

    def multiply(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Return the thread's values of A * B + C."""
        raise NotImplementedError

    def make_fragment(self, operand: str, of: Any) -> Any:
        dtype = self.types[operand]
        if isinstance(of, TracedTensor) and operand != "C":
            return make_fragment_like(of, dtype)
        return make_rmem_tensor(of.shape if isinstance(of, TracedTensor) else of, dtype)

    def registers(self, operand: str, tensor: TracedTensor) -> Registers:
        """Return an operand as the values of its calls."""
        needed = self._values[operand]
        layout = tensor.offset_layout
        shape = tensor.shape
        if product(shape) != needed and isinstance(shape, tuple):
            shape = shape[0]
            if product(shape) != needed and (once := _without_repeats(layout, needed)) is not None:
                return self.as_registers(operand, self.pointer_to(operand, tensor), once)
        if product(shape) != needed:
            raise type_error(
                f"an MMA takes {needed} values of {operand}, got the shape {pretty_str(shape)}",
                "mode 0 holds the values of one call: partition with the tiled MMA",
            )
        if needed > 1 and not tensor.layout.is_static():
            raise type_error(
                f"an MMA takes {operand} from registers, got a tensor with the layout {tensor.layout}",
                f"copy it to what make_fragment_{operand} makes",
            )
        return self.as_registers(operand, self.pointer_to(operand, tensor), layout)

    def as_registers(self, operand: str, pointer: Pointer, layout: object) -> Registers:
        """Return the values of an operand at a pointer by its calls."""
        return Registers(pointer, layout, self._values[operand])

    def pointer_to(self, operand: str, tensor: TracedTensor) -> Pointer:
        """Return the pointer that the values of an operand are read through."""
        return tensor._memory("gemm()", operand)

    def load(self, operand: str, registers: Registers, call: int) -> ir.Value:
        """Return the values of a call."""
        return registers.load(call)

    def store(self, registers: Registers, call: int, value: ir.Value) -> None:
        """Write the values of D of a call."""
        registers.store(call, value)

    def call(self, d: Any, a: Any, b: Any, c: Any) -> None:
        left, right, start = (self.load(name, self.registers(name, x), 0) for name, x in zip("ABC", (a, b, c)))
        self.store(self.registers("C", d), 0, self.multiply(left, right, start))

    def gemm(self, d: Any, a: Any, b: Any, c: Any, rows: int, columns: int, depth: int | None) -> None:
        """Do all calls; each operand is read once, and each result written once."""
        sources = {name: self.registers(name, x) for name, x in zip("ABC", (a, b, c), strict=True)}
        target = sources["C"] if d is c else self.registers("C", d)
        accumulators = {(m, n): self.load("C", sources["C"], m + rows * n) for m in range(rows) for n in range(columns)}
        for k in range(1 if depth is None else depth):
            left = [self.load("A", sources["A"], m + rows * k) for m in range(rows)]
            right = [self.load("B", sources["B"], n + columns * k) for n in range(columns)]
            for m, n in calls_in_order(rows, columns):
                accumulators[m, n] = self.multiply(left[m], right[n], accumulators[m, n])
        for (m, n), value in accumulators.items():
            self.store(target, m + rows * n, value)


class MmaOp(Op):
    """An operation that multiplies and accumulates."""

    def make_trait(self, **kwargs: Any) -> MmaTrait:
        """Return its trait."""
        raise NotImplementedError


class MmaAtom(Atom, Drawn):
    """A multiply-accumulate operation."""

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """The extents of one call."""
        return self._trait.shape_mnk

    @property
    def thr_id(self) -> Layout:
        """The threads that execute it together."""
        return self._trait.thr_id

    @property
    def tv_layout_A(self) -> Layout:
        """(thread, value) -> index in the (M, K) of one call."""
        return self._trait.layouts_tv["A"]

    @property
    def tv_layout_B(self) -> Layout:
        """(thread, value) -> index in the (N, K) of one call."""
        return self._trait.layouts_tv["B"]

    @property
    def tv_layout_C(self) -> Layout:
        """(thread, value) -> index in the (M, N) of one call."""
        return self._trait.layouts_tv["C"]

    def make_fragment_A(self, input: object, *, loc: object = None, ip: object = None) -> TracedTensor[Any]:
        """Return the operand A of `gemm`: registers like a partitioned tensor, or of a partitioned shape."""
        return self._trait.make_fragment("A", input)

    def make_fragment_B(self, input: object, *, loc: object = None, ip: object = None) -> TracedTensor[Any]:
        """Return the operand B of `gemm`."""
        return self._trait.make_fragment("B", input)

    def make_fragment_C(self, input: object, *, loc: object = None, ip: object = None) -> TracedTensor[Any]:
        """Return the accumulator of `gemm` (C and D), undefined at first."""
        return self._trait.make_fragment("C", input)

    def __str__(self) -> str:
        return (
            f"MMA Atom\n  ThrID:       {self.thr_id}\n  Shape MNK:   {pretty_str(self.shape_mnk)}\n"
            f"  TV Layout A: {self.tv_layout_A}\n  TV Layout B: {self.tv_layout_B}\n  TV Layout C: {self.tv_layout_C}"
        )

    def __repr__(self) -> str:
        return str(self)

    def __kiln_static_key__(self) -> Any:
        trait = self._trait
        return (type(self), self._op, trait.shape_mnk, *(str(x) for x in trait.layouts_tv.values()))

    __kiln_key__ = __kiln_static_key__


class TiledMma(MmaAtom):
    """An atom repeated over M, N and K: by more threads (`atom_layout_mnk`) and over a tile (`permutation_mnk`)."""

    def __init__(self, op: object, trait: object, atom_layout_mnk: Layout, permutation_mnk: tuple[Any, ...]) -> None:
        super().__init__(op, trait)
        self._atom_layout_mnk = atom_layout_mnk
        self._permutation_mnk = permutation_mnk

    @property
    def atom_layout_mnk(self) -> Layout:
        """The layout of atoms over threads: (m, n, k) -> number of the atom."""
        return self._atom_layout_mnk

    @property
    def permutation_mnk(self) -> tuple[Any, ...]:
        """The permutation of each mode of the tile before atoms cover it, a tiler of layouts; None: as it is."""
        return tile_of_layouts(self._permutation_mnk)

    @property
    def thr_layout_vmnk(self) -> Layout:
        """(thread of the atom, atom in M, N, K) -> thread."""
        return tiled_product(self.thr_id, self._atom_layout_mnk)

    @property
    def size(self) -> int:
        """The number of threads."""
        return size(self.thr_layout_vmnk)

    def _permutation(self, mode: int) -> Any:
        permutation = self._permutation_mnk[mode]
        if permutation is None:
            return self.shape_mnk[mode] * size(self.thr_layout_vmnk[mode + 1])
        return permutation

    def get_tile_size(self, mode_idx: int) -> int:
        """Return the extent of the tile in M (0), N (1) or K (2)."""
        extent = self._permutation(mode_idx)
        return product(extent.shape if isinstance(extent, Layout) else extent)

    def get_slice(self, thr_idx: object) -> ThrMma:
        """Return the part of one thread."""
        return ThrMma(self, thr_idx)

    def _split(self, operand: str, x: object) -> Any:
        """Return (i, j, ...) as ((thread, value) of the atom, ((thread i, rest i), (thread j, rest j), ...))."""
        i, j = OPERAND_MODES[operand]
        if rank(x) < 2:
            raise type_error(
                f"the operand {operand} of an MMA has at least two modes, got {_describe(x)}",
                f"a tile of it is ({'MNK'[i]}, {'MNK'[j]}, ...)",
            )
        shape = self.shape_mnk
        threads = self.thr_layout_vmnk
        ordered = logical_divide(x, (self._permutation(i), self._permutation(j)))
        by_atom = zipped_divide(ordered, (make_layout(shape[i]), make_layout(shape[j])))
        by_value = composition(by_atom, (self._trait.layouts_tv[operand], None))
        return logical_divide(by_value, (None, (make_layout(size(threads[i + 1])), make_layout(size(threads[j + 1])))))

    def _tv_layout(self, operand: str) -> Layout:
        """Return (thread, value) -> index in the operand's part of the tile."""
        i, j = OPERAND_MODES[operand]
        split = self._split(operand, make_layout((self.get_tile_size(i), self.get_tile_size(j))))
        thread, value = split[0]
        (thread_i, rest_i), (thread_j, rest_j) = split[1]
        # Threads that differ only in the mode the operand lacks hold the same values.
        extents = [size(self.thr_layout_vmnk[mode + 1]) for mode in range(3)]
        modes: list[Layout] = [make_layout(extent, stride=0) for extent in extents]
        modes[i] = thread_i
        modes[j] = thread_j
        by_thread = make_layout([thread, *modes])
        threads = self.thr_layout_vmnk
        number = composition(
            make_layout((size(threads), 1), stride=(1, 0)), right_inverse(make_layout([threads, complement(threads)]))
        )
        return make_layout([composition(by_thread, number), make_layout([value, make_layout([rest_i, rest_j])])])

    @property
    def tv_layout_A_tiled(self) -> Layout:
        """(thread, value) -> index in the (M, K) of the tile."""
        return self._tv_layout("A")

    @property
    def tv_layout_B_tiled(self) -> Layout:
        """(thread, value) -> index in the (N, K) of the tile."""
        return self._tv_layout("B")

    @property
    def tv_layout_C_tiled(self) -> Layout:
        """(thread, value) -> index in the (M, N) of the tile."""
        return self._tv_layout("C")

    def _thrfrg_A(self, layout: object) -> Any:
        """Return an A (M, K) as ((thread of the atom, (threads along M, K)), (values, (rest of M, rest of K)))."""
        return self._thrfrg("A", layout)

    def _thrfrg(self, operand: str, x: T) -> T:
        """Return (i, j) of an operand as ((thread of the atom, (threads along i, j)), (values, (rest of i, rest of j)))."""
        if isinstance(x, TracedTensor):
            return cast("T", make_tensor(x.iterator, self._thrfrg(operand, x.layout)))
        (thread, value), ((thread_i, rest_i), (thread_j, rest_j)) = self._split(operand, x)
        threads = make_layout([thread, make_layout([thread_i, thread_j])])
        return cast("T", make_layout([threads, make_layout([value, make_layout([rest_i, rest_j])])]))

    def _partition_shape(self, operand: str, shape: object) -> Any:
        split = self._split(operand, make_layout(shape))
        return _sliced(split, 0, 0, 0).shape

    def partition_shape_A(self, shape_mk: object, *, loc: object = None, ip: object = None) -> tuple[Any, ...]:
        """Return the shape of a thread's part of an A of a shape: (values, rest of M, rest of K, ...)."""
        return self._partition_shape("A", shape_mk)

    def partition_shape_B(self, shape_nk: object, *, loc: object = None, ip: object = None) -> tuple[Any, ...]:
        """Return the shape of a thread's part of a B of a shape."""
        return self._partition_shape("B", shape_nk)

    def partition_shape_C(self, shape_mn: object, *, loc: object = None, ip: object = None) -> tuple[Any, ...]:
        """Return the shape of a thread's part of a C of a shape."""
        return self._partition_shape("C", shape_mn)

    def __str__(self) -> str:
        return (
            f"Tiled MMA\n  Thr Layout VMNK: {self.thr_layout_vmnk}\n"
            f"  Permutation MNK: {_tiler_text(self.permutation_mnk)}\n{super().__str__()}"
        )

    def __repr__(self) -> str:
        return str(self)

    def __kiln_static_key__(self) -> Any:
        return (*super().__kiln_static_key__(), str(self._atom_layout_mnk), _tiler_text(self._permutation_mnk))

    __kiln_key__ = __kiln_static_key__


def _sliced(split: Any, thread: object, thread_i: object, thread_j: object) -> Any:
    """Return one thread's part of a split operand: (values, rest i, rest j, further modes...)."""
    further = len(split.shape[1]) - 2
    coord = ((thread, None), ((thread_i, None), (thread_j, None), *(None,) * further))
    if isinstance(split, TracedTensor):
        return split._slice(coord, by_thread=True)
    return slice_(split, coord)


class ThrMma(ThreadSlice, TiledMma):
    """The part of a tiled MMA that one thread does."""

    def _partition(self, operand: str, tensor: object) -> Any:
        if not isinstance(tensor, TracedTensor):
            raise type_error(f"partition_{operand} takes a tensor, got {type(tensor).__name__}")
        i, j = OPERAND_MODES[operand]
        if operand != "C" and self._trait.whole_tiles and tensor.memspace is AddressSpace.smem and rank(tensor) > 1:
            self._require_whole_tiles(operand, tensor)
        place = self.thr_layout_vmnk.get_flat_coord(self._thr_idx)
        return _sliced(self._split(operand, tensor), place[0], place[i + 1], place[j + 1])

    def _require_whole_tiles(self, operand: str, tensor: Any) -> None:
        """Refuse an operand in shared memory that the tile of the MMA does not divide: the rest would be read past it."""
        for mode, letter in enumerate(OPERAND_MODES[operand]):
            extent = size(tensor.layout[mode])
            tile = self.get_tile_size(letter)
            if isinstance(extent, int) and extent % tile:
                raise type_error(
                    f"operand {operand} in shared memory has {extent} elements along {'MNK'[letter]}, and the tiled MMA "
                    f"takes {tile} at a time: the last part would read past the end",
                    f"make it a multiple of {tile}: pad the tile with zeros, or choose another instruction shape",
                )

    def partition_A(self, input_mk: T, *, loc: object = None, ip: object = None) -> T:
        """Return the thread's part of a tensor (M, K, ...): (values of the atom, rest of M, rest of K, ...)."""
        return self._partition("A", input_mk)

    def partition_B(self, input_nk: T, *, loc: object = None, ip: object = None) -> T:
        """Return the thread's part of a tensor (N, K, ...)."""
        return self._partition("B", input_nk)

    def partition_C(self, input_mn: T, *, loc: object = None, ip: object = None) -> T:
        """Return the thread's part of a tensor (M, N, ...)."""
        return self._partition("C", input_mn)


def _tiler_text(tiler: Any) -> str:
    return f"({','.join('_' if t is None else str(t) for t in tiler)})"


def _describe(x: object) -> str:
    return f"the layout {x.layout if isinstance(x, TracedTensor) else x}"


def make_mma_atom(op: object, *, loc: object = None, ip: object = None, **kwargs: object) -> MmaAtom:
    """Return an MMA atom, one instruction, from an operation.

    Args:
        op: the operation, such as `warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16))`.
        kwargs: options of the operation; an unknown one raises TypeError.
    """
    if not isinstance(op, MmaOp):
        hint = (
            f"pass an instance: {op.__name__}(...)" if isinstance(op, type) else "for example MmaUniversalOp(Float32)"
        )
        raise type_error(f"make_mma_atom takes an MMA operation, got {op!r}", hint)
    if (make := getattr(op, "_make_trait", None)) is None:
        return MmaAtom(op, op.make_trait(**accepted_keywords(op.make_trait, type(op).__name__, kwargs)))
    trait = getattr(make(**kwargs), "value", None)
    if not isinstance(trait, MmaTrait):
        raise type_error(f"{type(op).__name__}._make_trait returns no trait of an MMA", "return Trait(make_atom(type))")
    return MmaAtom(op, trait)


def make_tiled_mma(
    op_or_atom: object,
    atom_layout_mnk: object = (1, 1, 1),
    permutation_mnk: object = None,
    *,
    loc: object = None,
    ip: object = None,
    **kwargs: object,
) -> TiledMma:
    """Return an MMA of many threads: an atom repeated over a tile (M, N, K).

    Args:
        op_or_atom: an MMA operation, or an atom of `make_mma_atom`.
        atom_layout_mnk: how many atoms lie side by side along M, N and K, each done by its own threads: a shape or a
            layout.
        permutation_mnk: for each of M, N and K the extent of the tile, a layout (place in the atoms' order -> place in
            the tile), or None: just what the atoms cover. Extents are multiples of that, else TypeError is raised.
        kwargs: options of the operation.
    """
    atom = op_or_atom if isinstance(op_or_atom, MmaAtom) else make_mma_atom(op_or_atom, **kwargs)
    layout = atom_layout_mnk if isinstance(atom_layout_mnk, Layout) else make_layout(atom_layout_mnk)
    if rank(layout) > 3:
        raise type_error(f"atom_layout_mnk has the modes M, N and K, got {layout}")
    layout = append(layout, UNIT, 3)
    permutations = () if permutation_mnk is None else wrap(permutation_mnk)
    if len(permutations) > 3:
        raise type_error(f"permutation_mnk has the modes M, N and K, got {_tiler_text(permutations)}")
    permutation = (*permutations, *(None,) * (3 - len(permutations)))
    for mode, extent in enumerate(permutation):
        covered = product(extent.shape) if isinstance(extent, Layout) else None if extent is None else product(extent)
        least = atom.shape_mnk[mode] * size(layout[mode])
        if covered is not None and (not isinstance(covered, int) or covered % least):
            raise type_error(
                f"permutation_mnk[{mode}] has the extent {covered}, and the atoms of all threads cover {least} in {'MNK'[mode]}",
                f"the extent is a multiple of {least}, or None",
            )
    return TiledMma(atom.op, atom.trait, layout, permutation)


def _atom(atom: object, what: str) -> MmaAtom:
    if not isinstance(atom, MmaAtom):
        raise type_error(
            f"{what}() takes an MMA atom first, got {type(atom).__name__}",
            "cute.make_mma_atom(op) or cute.make_tiled_mma(op, ...)",
        )
    return atom


def mma_atom_call(
    atom: Any, d: Any, a: Any, b: Any, c: Any, *, loc: object = None, ip: object = None, **kwargs: Any
) -> None:
    """Compute D = A * B + C with one call of an MMA atom.

    Args:
        atom: the MMA atom.
        d: the result, which holds exactly the atom's values of D.
        a: operand A, with the atom's values.
        b: operand B, with the atom's values.
        c: what is added, usually the same tensor as `d`.
        kwargs: options of the atom.
    """
    trait = _atom(atom, "mma_atom_call").trait
    trait.call(d, a, b, c, **accepted_keywords(trait.call, f"a call of {type(atom.op).__name__}", kwargs))


@at_one_location
def gemm(
    atom: object,
    d: Tensor,
    a: Tensor | Sequence[Tensor],
    b: Tensor | Sequence[Tensor],
    c: Tensor,
    *,
    loc: object = None,
    ip: object = None,
    **kwargs: object,
) -> None:
    """Compute D = A * B + C with an MMA atom, as many calls as the tensors hold.

    By their modes: (V) x (V) => (V), one call; (V, M) x (V, N) => (V, M, N); (V, M, K) x (V, N, K) => (V, M, N), summed
    over K. With an atom of one value each V may be left out: (M) x (N) => (M, N) and (M, K) x (N, K) => (M, N).

    Args:
        atom: an MMA atom or tiled MMA.
        d: the accumulator to write, (V, M, N).
        a: fragments of A, (V, M, K); with block scales a list of A and its scale factors.
        b: fragments of B, (V, N, K), likewise.
        c: what is added, usually the same tensor as `d`.
        kwargs: options of the atom.
    """
    _gemm(_atom(atom, "gemm"), d, a, b, c, kwargs)


def _gemm(atom: Atom, d: Any, a: Any, b: Any, c: Any, kwargs: dict[str, object]) -> None:
    trait: Any = atom.trait
    kwargs = accepted_keywords(trait.call, f"gemm() with {type(atom.op).__name__}", kwargs)
    ranks = tuple(rank(_first(x)) for x in (a, b, c, d))
    if ranks == (1, 1, 1, 1):
        trait.call(d, a, b, c, **kwargs)
        return
    if ranks[2:] == (2, 2):  # without V
        a, b, c, d = (_with_unit_mode(x) for x in (a, b, c, d))
        ranks = (ranks[0] + 1, ranks[1] + 1, 3, 3)
    if ranks not in ((2, 2, 3, 3), (3, 3, 3, 3)):
        raise type_error(
            f"gemm() of tensors with {ranks[0]}, {ranks[1]}, {ranks[2]} and {ranks[3]} modes (A, B, C, D)",
            "(V, M, K) x (V, N, K) => (V, M, N), (V, M) x (V, N) => (V, M, N) or (V) x (V) => (V)",
        )
    rows, *depth = _extents(a)
    columns, *depth_b = _extents(b)
    if depth != depth_b or not _extents(c) == _extents(d) == [rows, columns]:
        raise type_error(
            f"gemm() of A {_shape(a)} and B {_shape(b)} into C {_shape(c)} and D {_shape(d)}",
            "A is (V, M, K), B is (V, N, K), C and D are (V, M, N)",
        )
    trait.gemm(d, a, b, c, rows, columns, depth[0] if depth else None, **kwargs)


def _first(x: object) -> Any:
    """Return an operand, or the first of the tensors it is made of."""
    return x[0] if isinstance(x, (tuple, list)) else x


def _shape(x: Any) -> str:
    return ", ".join(pretty_str(t.shape) for t in (x if isinstance(x, (tuple, list)) else (x,)))


def _extents(x: object) -> list[int]:
    """Return the sizes of the modes after the first."""
    return [product(s) for s in _first(x).shape[1:]]


def _with_unit_mode(x: TracedTensor) -> TracedTensor:
    return x._map_layout(lambda layout: make_layout([UNIT, *(layout[i] for i in range(rank(layout)))]))


def _part(x: Any, i: int, k: int | None) -> Any:
    """Return the values of one call; of an operand that is several tensors, of each."""
    if isinstance(x, (tuple, list)):
        return type(x)(_part(t, i, k) for t in x)
    return x[None, i] if k is None else x[None, i, k]


def calls_in_order(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return all (m, n) in serpentine order, so that neighbours share an operand."""
    return [(m, n if m % 2 == 0 else columns - 1 - n) for m in range(rows) for n in range(columns)]
