"""Objects of classes of installed packages, whose attributes change under a condition as those of programs do."""

from __future__ import annotations

import importlib
import sys

import numpy as np

import kiln

INSTALLED = """
import kiln
from kiln import cute


class Partition:
    def __init__(self):
        self.part = None
        self.size = 4

    def setup(self, x):
        self.part = cute.local_tile(x, (2,), (1,))


class Kernel:
    def __init__(self):
        self.partition = Partition()

    @cute.kernel
    def kernel(self, x: cute.Tensor):
        if x[0] == 5:
            self.partition.setup(x)
            self.partition.part[0] = 7
        x[1] = self.partition.size

    @cute.jit
    def __call__(self, x: cute.Tensor):
        self.kernel(x).launch(grid=1, block=1)
"""


def test_objects_of_installed_classes_drop_changes_too(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "kiln_test_installed.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    try:
        kernel, x = importlib.import_module("kiln_test_installed").Kernel(), np.array([5, 0, 0, 0], np.int32)
        with kiln.target("cpu"):
            kernel(x)
        assert x.tolist() == [5, 4, 7, 0]
        assert vars(kernel.partition) == {"part": None, "size": 4}
        assert "part" not in vars(type(kernel.partition))
    finally:
        del sys.modules["kiln_test_installed"]
