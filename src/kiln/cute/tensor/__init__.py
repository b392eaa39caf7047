"""Tensors: pointers and other iterators seen through layouts, vectors of their elements, and how memory is accessed."""

from __future__ import annotations

from .tensor import *
from .tensor import TracedTensor as _Tensor  # the name programs know the class by
from .tensor_ssa import ReductionOp, TensorSSA
