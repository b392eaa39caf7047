"""What build systems find of CuTe DSL's wheels where Kiln serves them: versions, and the folder with libraries and header."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from typing import SupportsIndex, overload

PACKAGE = "nvidia_cutlass_dsl"
"""The package without modules in which the wheels have their libraries."""
DISTRIBUTIONS = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base")


def package_folder() -> str:
    """Return the folder that stands for `nvidia_cutlass_dsl`, with `lib` and `include`; makes it."""
    from . import runtime_files  # not above: it imports native code

    return runtime_files.package_folder(PACKAGE)


class Served(Distribution):
    """One of the wheels, whose metadata are its name and the version of the interface."""

    def __init__(self, name: str, version: Callable[[], str]) -> None:
        self._name = name
        self._version = version

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {self._version()}\nSummary: served by Kiln\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: object) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return where a file of the wheel is, or would be; makes those of the package's folder."""
        name = os.fspath(path)  # pyright: ignore[reportArgumentType,reportCallIssue]
        root, _, rest = name.replace(os.sep, "/").partition("/")
        return os.path.join(package_folder(), rest).rstrip("/") if root == PACKAGE else name


class _Folder(list[str]):
    """The search path of the package: its folder, which is made when someone asks for it."""

    def __iter__(self) -> Iterator[str]:
        return iter((package_folder(),))

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> str | list[str]:
        return [package_folder()][index]


def spec() -> ModuleSpec:
    """Return the spec of the package, which has a folder and no module."""
    package = ModuleSpec(PACKAGE, None, is_package=True)
    package.submodule_search_locations = _Folder()
    return package
