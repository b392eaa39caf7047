"""Values that a kernel computes from its arguments alone, computed again in host code before the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...analysis import effects
from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ..tensor.leaf_values import leaf_like, leaf_value
from ..tensor.tensor import TracedTensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class Recipe(NamedTuple):
    """An operation to repeat, or with an empty name the number of an argument of the kernel. It outlives the trace of
    the region that it was found in."""

    name: str
    number: int
    types: tuple[Any, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    operands: tuple[Recipe, ...] = ()


def recipe_of(value: ir.Value, entry: ir.Block) -> Recipe | None:
    """Return how to compute a value of a kernel from its arguments; None if it depends on something else."""
    if isinstance(value.owner, ir.Block):
        return Recipe("", ir.BlockArgument(value).arg_number) if value.owner == entry else None
    operation = value.owner
    result = ir.OpResult(value)
    if not effects.in_host_code(operation.name) and not operation.name.startswith("arith."):
        return None
    operands: list[Recipe] = []
    for operand in operation.operands:
        recipe = recipe_of(operand, entry)
        if recipe is None:
            return None
        operands.append(recipe)
    attributes = tuple((name, operation.attributes[name]) for name in operation.attributes)
    kinds = tuple(r.type for r in operation.results)
    return Recipe(operation.name, result.result_number, kinds, attributes, tuple(operands))


def computed(recipe: Recipe, arguments: Sequence[ir.Value]) -> ir.Value:
    """Emit what a recipe says, for the values that a launch passes."""
    if not recipe.name:
        return arguments[recipe.number]
    operands = [computed(operand, arguments) for operand in recipe.operands]
    return tracing.emit(recipe.name, recipe.types, operands, dict(recipe.attributes)).results[recipe.number]


class TensorAtLaunch:
    """A tensor of a kernel whose layout, and for `whole` whose address, the host knows when it launches the kernel."""

    def __init__(self, tensor: TracedTensor, entry: ir.Block) -> None:
        self._pointer = tensor._iterator
        self._layout = tensor._layout
        self._recipes = [recipe_of(v, entry) for v in (self._pointer.ir_value(), *map(leaf_value, self._leaves))]
        self.whole: bool = None not in self._recipes
        self.is_layout_static: bool = None not in self._recipes[1:]
        self.key: tuple[tuple[Recipe | None, ...], str, Any] = (
            tuple(self._recipes),
            str(self._layout),
            self._pointer.dtype,
        )

    @property
    def _leaves(self) -> list[Any]:
        return self._layout._leaves()

    def in_host_code(self, arguments: Sequence[ir.Value]) -> TracedTensor:
        """Return the tensor in host code, for the values that a launch passes."""
        base, *leaves = (computed(recipe, arguments) for recipe in self._recipes if recipe is not None)
        layout = self._layout
        if leaves:
            layout = layout._with_leaves([leaf_like(leaf, v) for leaf, v in zip(self._leaves, leaves, strict=True)])
        return TracedTensor(self._pointer.__new_from_mlir_values__([base]), layout)
