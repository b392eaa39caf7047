"""Copy atoms and tiled copies: which thread of a tile holds which of its values.

An atom is the smallest copy an operation does: `thr_id` threads with the values that `layout_src_tv` and
`layout_dst_tv` name, maps (thread, value) -> index in the data of one call. A tiled copy repeats an atom over
a tile by a map (thread, value) -> index in the tile. New operations subclass `CopyOp` and give their `CopyTrait`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Integer, NumericMeta
from ..layout.algebra import coalesce, composition
from ..layout.algebra import filter as filter_layout
from ..layout.int_tuple import product, product_each, wrap
from ..layout.inverses import left_inverse, right_inverse
from ..layout.layout import Layout, layouts_of, make_layout, rank, size
from ..layout.modes import slice_
from ..layout.picture import Drawn
from ..layout.recast import recast_layout
from ..layout.tiling import logical_product, make_layout_tv, zipped_divide
from ..tensor.pointer import type_name
from ..tensor.tensor import TracedTensor

__all__ = [
    "Atom",
    "CopyAtom",
    "CopyOp",
    "CopyTrait",
    "Op",
    "ThrCopy",
    "TiledCopy",
    "make_copy_atom",
    "make_cotiled_copy",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
]


T = TypeVar("T")
OPERAND_MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1), "SFA": (0, 2), "SFB": (1, 2)}
"""The modes of (M, N, K) of each operand of an MMA, and of scale factors."""


class Op:
    """An operation of the hardware (or of every processor) that atoms are made of. Equal by type and fields."""

    __kiln_immutable__ = True

    def _fields(self) -> dict[str, Any]:
        return dict(vars(self))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted((k, str(v)) for k, v in self._fields().items()))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v}" for k, v in self._fields().items())
        return f"{type(self).__name__}({fields})"


class Trait:
    """The properties of an operation as an atom. Its fields are values of the program; by default it has none."""

    __kiln_immutable__ = True

    def __init__(self, value: object = None) -> None:
        self.value = value
        """What `make_atom` made, where the program derives its own trait."""

    def with_fields(self, **fields: Any) -> Any:
        """Return the trait with fields set that are known only at run time."""
        raise type_error(f"{type(self).__name__} has no field {sorted(fields)[0]!r}")

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return []

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        return self

    def __kiln_static_key__(self) -> Any:
        """Return what two atoms of one operation, type and layouts must also agree in to be merged."""
        return ()


class CopyTrait(Trait):
    """A copy operation for elements of one type: its threads, its values, and how it is done."""

    def __init__(self, value_type: Any, thr_id: Layout, layout_src_tv: Layout, layout_dst_tv: Layout) -> None:
        self.value_type = value_type
        self.thr_id = thr_id
        self.layout_src_tv = layout_src_tv
        self.layout_dst_tv = layout_dst_tv

    @property
    def layout_ref_tv(self) -> Layout:
        """The side whose values number the tile: the source, unless an operation says otherwise."""
        return self.layout_src_tv

    def copy(self, src: Any, dst: Any, pred: Any, **kwargs: Any) -> None:
        """Copy `src` to `dst`, with as many calls of the atom as they hold."""
        raise NotImplementedError


class CopyOp(Op):
    """An operation that copies."""

    def make_trait(self, copy_internal_type: Any, **kwargs: Any) -> CopyTrait:
        """Return the trait for elements of a type."""
        raise NotImplementedError


_FIELDS_IN_IR = {"accum_c": "accumulate", "neg_a": "negate_a", "neg_b": "negate_b", "sf_a": "sfa", "sf_b": "sfb"}
"""The fields of MMAs that CuTe DSL calls otherwise in its IR."""


def _field_name(field: object) -> str:
    """Return the name of a field, given as a member of `Field` or by its name in CuTe DSL's IR."""
    name = str(getattr(field, "name", field)).lower()
    return _FIELDS_IN_IR.get(name, name)


class Atom:
    """An operation with its trait. `set` changes it in place, also inside branches and loops."""

    def __init__(self, op: Any, trait: Any) -> None:
        self._op = op
        self._trait = trait

    @property
    def op(self) -> Any:
        """The operation of the hardware that the atom is made of."""
        return self._op

    @property
    def trait(self) -> Any:
        """The trait of the operation."""
        return self._trait

    @property
    def type(self) -> str:
        """The atom as it is printed in the IR."""
        return f'!cute.atom<"{self._op}">'

    def _with_trait(self, trait: Any) -> Any:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._trait = trait
        return copied

    def set(self, modifier: object, value: object, *, loc: object = None, ip: object = None) -> None:
        """Set a field of the atom that is known only at run time."""
        self._trait = self._trait.with_fields(**{_field_name(modifier): value})

    def get(self, field: object, *, loc: object = None, ip: object = None) -> Any:
        """Return a field of the atom."""
        return getattr(self._trait, _field_name(field))

    def with_(self, *, loc: object = None, ip: object = None, **kwargs: object) -> Any:
        """Return the atom with fields set."""
        return self._with_trait(self._trait.with_fields(**kwargs))

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return self._trait.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        return self._with_trait(self._trait.__new_from_mlir_values__(values)) if values else self

    def __kiln_static_key__(self) -> Any:
        return (
            type(self),
            self._op,
            self._trait.value_type,
            str(self._trait.layout_src_tv),
            str(self._trait.layout_dst_tv),
            self._trait.__kiln_static_key__(),
        )

    __kiln_key__ = __kiln_static_key__


class CopyAtom(Atom, Drawn):
    """A copy operation for elements of a type."""

    @property
    def value_type(self) -> Any:
        """The type of the elements it copies."""
        return self._trait.value_type

    @property
    def thr_id(self) -> Layout:
        """The threads that execute it together."""
        return self._trait.thr_id

    @property
    def layout_src_tv(self) -> Layout:
        """(thread, value) -> index in the source of one call."""
        return self._trait.layout_src_tv

    @property
    def layout_dst_tv(self) -> Layout:
        """(thread, value) -> index in the destination of one call."""
        return self._trait.layout_dst_tv

    def __str__(self) -> str:
        return f"Copy Atom\n  ThrID:         {self.thr_id}\n  TV Layout Src: {self.layout_src_tv}\n  TV Layout Dst: {self.layout_dst_tv}\n  Value type:    {type_name(self.value_type)}"

    def __repr__(self) -> str:
        return str(self)


def _transform(tile_tv: Layout, atom: CopyAtom, own: Layout) -> Layout:
    """Return ((thread of the tile), (value of the thread)) -> index in the tile, for one side of the atom."""
    ref = atom.trait.layout_ref_tv
    threads = size(ref[0])
    values = size(ref[1])
    split = zipped_divide(tile_tv, (threads, values))  # ((atom thread, atom value), (rest of threads, rest of values))
    if own != ref:
        inside = composition(right_inverse(ref), own)
        split = make_layout([composition(split[0], inside), split[1]])
    inner, outer = split
    zipped = make_layout([make_layout([inner[0], outer[0]]), make_layout([inner[1], outer[1]])])
    return coalesce(zipped, target_profile=(1, (1, 1)))


class TiledCopy(CopyAtom):
    """An atom repeated over a tile: `layout_tv_tiled` maps (thread, value) to the index in a tile `tiler_mn`."""

    def __init__(self, op: object, trait: object, layout_tv: Layout, tiler_mn: Any) -> None:
        super().__init__(op, trait)
        self._layout_tv = layout_tv
        self._tiler_mn = tiler_mn

    @property
    def layout_tv_tiled(self) -> Layout:
        """(thread, value) -> index in the tile."""
        return self._layout_tv

    @property
    def tiler_mn(self) -> Any:
        """The tile, as a tiler of layouts: `8:1` for the extent 8."""
        return tile_of_layouts(self._tiler_mn)

    @property
    def size(self) -> int:
        """The number of threads."""
        return size(self._layout_tv[0])

    @property
    def layout_src_tv_tiled(self) -> Layout:
        """(thread, value) -> index in the tile, for the source."""
        return self._tiled(self.layout_src_tv)

    @property
    def layout_dst_tv_tiled(self) -> Layout:
        """(thread, value) -> index in the tile, for the destination."""
        return self._tiled(self.layout_dst_tv)

    def _tiled(self, own: Layout) -> Layout:
        return _transform(self._layout_tv, self, own)

    @property
    def _reaches_past_its_tile(self) -> bool:
        """Whether one call of the atom has more values than a thread has in the tile."""
        return size(self.trait.layout_ref_tv[1]) > size(self._layout_tv[1])

    def require_whole_calls(self) -> None:
        """Raise an error for a tile with fewer values for a thread than one call of the atom has."""
        if self._reaches_past_its_tile:
            held = size(self._layout_tv[1])
            needed = size(self.trait.layout_ref_tv[1])
            raise type_error(
                f"one call of {self.op} has {needed} values for a thread, which has {held} in a tile {self.tiler_mn}",
                "take fewer matrices or bits for a call, or a larger tile (permutation_mnk of the tiled MMA)",
            )

    def get_slice(self, thr_idx: object) -> ThrCopy:
        """Return the part of one thread."""
        return ThrCopy(self, thr_idx)

    def retile(self, src: T, *, loc: object = None, ip: object = None) -> T:
        """Return a thread's registers, partitioned for another operation, with the values of this atom in mode 0."""
        self.require_whole_calls()
        layout = src._layout if isinstance(src, TracedTensor) else src
        modes = rank(layout)
        values = size(layout, mode=[0])
        # (m, n) -> which group of values, in the tile of all threads
        inverse = composition(right_inverse(self._layout_tv), make_layout(_tile_shape(self._tiler_mn)))
        groups = recast_layout(size(self._layout_tv[0]) * values, 1, inverse)
        order = logical_product(make_layout(values), right_inverse(groups))
        by_atom = zipped_divide(order, make_layout(size(self.trait.layout_ref_tv[1])))
        tile = zipped_divide(src, (values, *product_each(wrap(groups.shape))))
        moved: Any = composition(tile, (by_atom, None))
        rest = (None, (0, *(None,) * (modes - 1)))
        retiled: Any = moved[rest] if isinstance(moved, TracedTensor) else slice_(moved, rest)
        return retiled

    def __str__(self) -> str:
        return f"Tiled Copy\n  Tiler MN:        ({','.join(str(mode) for mode in wrap(self.tiler_mn))})\n  TV Layout tiled: {self._layout_tv}\n{super().__str__()}"

    def __repr__(self) -> str:
        return str(self)

    def __kiln_static_key__(self) -> Any:
        return (*super().__kiln_static_key__(), str(self._layout_tv), str(self._tiler_mn))

    __kiln_key__ = __kiln_static_key__


class ThreadSlice(Atom):
    """A mixin for one thread's part of a tiled atom, before its class; the index of the thread may be dynamic."""

    def __init__(self, tiled: object, thr_idx: Any) -> None:
        self.__dict__.update(tiled.__dict__)
        self._thr_idx = thr_idx

    @property
    def thr_idx(self) -> Any:
        """The index of the thread."""
        return self._thr_idx

    def __extract_mlir_values__(self) -> list[ir.Value]:
        index = [self._thr_idx.ir_value()] if isinstance(self._thr_idx, Integer) else []
        return [*index, *super().__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        if not isinstance(self._thr_idx, Integer):
            return super().__new_from_mlir_values__(values)
        copy = self._with_trait(self._trait.__new_from_mlir_values__(values[1:]) if values[1:] else self._trait)
        copy._thr_idx = type(self._thr_idx)._make(values[0], self._thr_idx.nonneg, self._thr_idx.divisibility)
        return copy


class ThrCopy(ThreadSlice, TiledCopy):
    """The part of a tiled copy that one thread does."""

    def partition_S(self, src: T, *, loc: object = None, ip: object = None) -> T:
        """Return the thread's part of a source tile: (values of the atom and its repetitions, rests...)."""
        return self._partition(src, self.layout_src_tv)

    def partition_D(self, dst: T, *, loc: object = None, ip: object = None) -> T:
        """Return the thread's part of a destination tile."""
        return self._partition(dst, self.layout_dst_tv)

    def _partition(self, tensor: object, own: Layout) -> Any:
        if not isinstance(tensor, TracedTensor):
            raise type_error(f"partition_S and partition_D take a tensor, got {type(tensor).__name__}")
        modes = rank(tensor)
        if modes < len(wrap(self._tiler_mn)):
            raise type_error(
                f"partition_S and partition_D take a tensor with the {len(wrap(self._tiler_mn))} modes of the tiler "
                f"{self._tiler_mn}, got one with {modes}"
            )
        tiles = zipped_divide(tensor, self._tiler_mn)
        tiled = self._tiled(own)
        if self._reaches_past_its_tile:
            # past the tile the modes of the atom together need not be a layout, but each mode is
            split = layouts_of(tiles, lambda x: make_layout([_compose_each(x[0], tiled), x[1]]), "partition")
        else:
            split = composition(tiles, (tiled, None))
        rest = split.shape[1]
        outside: Any = (None,) * len(rest) if isinstance(rest, tuple) else None
        return split._slice(((self._thr_idx, None), outside), by_thread=True)


def _compose_each(tile: Layout, layout: Layout) -> Layout:
    """Return `tile` after each leaf of `layout`."""
    if isinstance(layout.shape, tuple):
        return make_layout([_compose_each(tile, mode) for mode in layout])
    return composition(tile, layout)


def tile_of_layouts(tiler: object) -> Any:
    """Return a tiler whose extents are layouts; None and layouts stay as they are."""
    if isinstance(tiler, tuple):
        return tuple(tile_of_layouts(t) for t in tiler)
    return tiler if tiler is None or isinstance(tiler, Layout) else make_layout(tiler)


def _tile_shape(tiler: object) -> Any:
    """Return the extents of a tile."""
    if isinstance(tiler, Layout):
        return (product(tiler.shape),)
    return tuple(product(t.shape) if isinstance(t, Layout) else t for t in wrap(tiler))


def make_copy_atom(
    op: object, copy_internal_type: object, *, loc: object = None, ip: object = None, **kwargs: object
) -> CopyAtom:
    """Return a copy atom: an instruction that copies, for elements of a type.

    Args:
        op: the operation, such as `cute.nvgpu.CopyUniversalOp()` or `cpasync.CopyG2SOp()`.
        copy_internal_type: the element type that the copy counts in.
        kwargs: options of the operation; `num_bits_per_copy` is the width of one call of the universal copy. An unknown
            one raises TypeError.
    """
    if not isinstance(op, CopyOp):
        hint = (
            f"pass an instance: {op.__name__}()" if isinstance(op, type) else "for example cute.nvgpu.CopyUniversalOp()"
        )
        raise type_error(f"make_copy_atom takes a copy operation, got {op!r}", hint)
    if not isinstance(copy_internal_type, NumericMeta) or copy_internal_type.is_abstract:
        raise type_error(f"make_copy_atom takes a numeric type such as Float16, got {copy_internal_type!r}")
    options = accepted_keywords(op.make_trait, type(op).__name__, kwargs)
    return CopyAtom(op, op.make_trait(copy_internal_type, **options))


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def accepted_keywords(
    function: Callable[..., Any], name: str, keywords: dict[str, Any], others: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the keywords that an operation's function takes; raise an error for unknown ones, unless they are None.

    `others` are further keywords, for the message.
    """
    if not keywords:
        return keywords
    parameters = _parameters(getattr(function, "__func__", function))
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return keywords
    for keyword, value in keywords.items():
        if keyword not in parameters and value is not None:
            options = [*others, *(p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY)]
            raise type_error(
                f"{name} takes no {keyword!r}", f"it takes {', '.join(options)}" if options else "it takes no options"
            )
    return {keyword: value for keyword, value in keywords.items() if keyword in parameters}


def make_tiled_copy(
    atom: CopyAtom, layout_tv: Layout, tiler_mn: object, *, loc: object = None, ip: object = None
) -> TiledCopy:
    """Return a copy by many threads, from an atom and a (thread, value) layout.

    Args:
        atom: a copy atom.
        layout_tv: the layout (thread, value) -> index in the tile. Its threads are a multiple of the atom's.
        tiler_mn: the tile that the indices count in: an extent or a layout for each mode.
    """
    if not isinstance(atom, CopyAtom):
        raise type_error(f"make_tiled_copy takes a copy atom, got {type(atom).__name__}")
    ref = atom.trait.layout_ref_tv
    for what, per_call, got in (
        ("threads", size(ref[0]), size(layout_tv[0])),
        ("values", size(ref[1]), size(layout_tv[1])),
    ):
        # A tile with fewer values than a warp's atom has can be looked at and partitioned, but not copied (`require_whole_calls`).
        part_of_call = what == "values" and size(ref[0]) > 1
        if (
            isinstance(per_call, int)
            and isinstance(got, int)
            and got % per_call
            and (not part_of_call or per_call % got)
        ):
            raise type_error(
                f"a tiled copy of {got} {what} from an atom of {per_call}",
                f"the {what} of the layout ({layout_tv}) are a multiple of the atom's",
            )
    return TiledCopy(atom.op, atom.trait, layout_tv, tiler_mn)


def make_tiled_copy_tv(
    atom: CopyAtom, thr_layout: Layout, val_layout: Layout, *, loc: object = None, ip: object = None
) -> TiledCopy:
    """Return a copy by many threads, each with a small tile of values: the usual way to tile a copy.

    Args:
        atom: a copy atom.
        thr_layout: the layout of the threads over the tile, such as `(16,8):(8,1)`.
        val_layout: the layout of the values of one thread, such as `(1,8):(8,1)` for eight in a row.
    """
    tiler_mn, layout_tv = make_layout_tv(thr_layout, val_layout)
    return make_tiled_copy(atom, layout_tv, tiler_mn)


def _tiled_copy(tiled: object, name: str) -> None:
    if not isinstance(tiled, TiledCopy):
        raise type_error(
            f"{name} takes a tiled copy, got {type(tiled).__name__}",
            "make_tiled_copy_A, make_tiled_copy_B and make_tiled_copy_C take a tiled MMA",
        )


def make_tiled_copy_S(atom: CopyAtom, tiled_copy: TiledCopy, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy in which each thread has the values that another tiled copy reads.

    Args:
        atom: the copy atom of the result.
        tiled_copy: the other tiled copy, whose tile and sources are taken.
    """
    _tiled_copy(tiled_copy, "make_tiled_copy_S")
    return make_tiled_copy(atom, tiled_copy.layout_src_tv_tiled, tiled_copy._tiler_mn)


def make_tiled_copy_D(atom: CopyAtom, tiled_copy: TiledCopy, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy in which each thread has the values that another tiled copy writes.

    Args:
        atom: the copy atom of the result.
        tiled_copy: the other tiled copy, whose tile and destinations are taken.
    """
    _tiled_copy(tiled_copy, "make_tiled_copy_D")
    return make_tiled_copy(atom, tiled_copy.layout_dst_tv_tiled, tiled_copy._tiler_mn)


def _over_operand(atom: CopyAtom, mma: Any, operand: str) -> TiledCopy:
    if not hasattr(mma, "get_tile_size"):
        raise type_error(
            f"make_tiled_copy_{operand} takes a tiled MMA, got {type(mma).__name__}",
            "cute.make_tiled_mma(...); make_tiled_copy_S and make_tiled_copy_D take a tiled copy",
        )
    tiler = tuple(mma.get_tile_size(mode) for mode in OPERAND_MODES[operand])
    return make_tiled_copy(atom, getattr(mma, f"tv_layout_{operand}_tiled"), tiler)


def make_tiled_copy_A(atom: CopyAtom, tiled_mma: object, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy of operand A for a tiled MMA: each thread gets the values that it multiplies.

    Args:
        atom: the copy atom, such as `ldmatrix` (`warp.LdMatrix8x8x16bOp`).
        tiled_mma: the tiled MMA.
    """
    return _over_operand(atom, tiled_mma, "A")


def make_tiled_copy_B(atom: CopyAtom, tiled_mma: object, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy of operand B for a tiled MMA: each thread gets the values that it multiplies.

    Args:
        atom: the copy atom, such as `ldmatrix` (`warp.LdMatrix8x8x16bOp`).
        tiled_mma: the tiled MMA.
    """
    return _over_operand(atom, tiled_mma, "B")


def make_tiled_copy_C(atom: CopyAtom, tiled_mma: object, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return a tiled copy of the accumulator of a tiled MMA: each thread has the values that it accumulates.

    Args:
        atom: the copy atom, such as `stmatrix` (`warp.StMatrix8x8x16bOp`).
        tiled_mma: the tiled MMA.
    """
    return _over_operand(atom, tiled_mma, "C")


def make_tiled_copy_C_atom(atom: CopyAtom, mma: Any, *, loc: object = None, ip: object = None) -> TiledCopy:
    """Return the smallest tiled copy of an atom that holds the accumulators of a tiled MMA in whole calls.

    Args:
        atom: the copy atom.
        mma: the tiled MMA.
    """
    layout_tv = mma.tv_layout_C_tiled
    shape_mn = (mma.get_tile_size(0), mma.get_tile_size(1))
    values = size(atom.layout_src_tv[1])
    # the values of one call, of all threads: (thread, value) -> index in the whole tile
    part = composition(layout_tv, make_layout((size(layout_tv[0]), values)))
    return _covering(atom, part, shape_mn)


def make_cotiled_copy(
    atom: CopyAtom, atom_layout_tv: Layout, data_layout: Layout, *, loc: object = None, ip: object = None
) -> TiledCopy:
    """Return a tiled copy whose (thread, value) layout maps to offsets of the data, not to its coordinates.

    Threads whose offsets lie past the end of the data repeat others: they get the coordinates that these have.

    Args:
        atom: the copy atom.
        atom_layout_tv: the layout (thread, value) -> offset.
        data_layout: the layout of the data, coordinate -> offset.
    """
    # the mode 1:0 is what offsets past the data get
    coords = composition(make_layout([left_inverse(data_layout), make_layout(1, stride=0)]), atom_layout_tv)
    return _covering(atom, coords, product_each(wrap(data_layout.shape)))


def _covering(atom: CopyAtom, layout_tv: Layout, extents: tuple[object, ...]) -> TiledCopy:
    """Return the tiled copy over the smallest tile with the values of `layout_tv`, which maps into `extents`."""
    modes = range(len(extents))
    tiler = tuple(
        filter_layout(composition(make_layout(extents, stride=tuple(int(i == j) for j in modes)), layout_tv))
        for i in modes
    )
    whole_of_tile = composition(make_layout(extents), tiler)
    return make_tiled_copy(atom, composition(left_inverse(whole_of_tile), layout_tv), tiler)
