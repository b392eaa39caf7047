"""What a build system asks Python: where libraries for linking are, by the package and by its distribution."""

import importlib.util
import os
from importlib import metadata

spec = importlib.util.find_spec("nvidia_cutlass_dsl")
assert spec is not None and spec.submodule_search_locations is not None
folder = os.path.join(spec.submodule_search_locations[0], "lib")
assert os.path.exists(os.path.join(folder, "libcuda_dialect_runtime_static.a"))
assert os.path.exists(os.path.join(folder, os.pardir, "include", "CuteDSLRuntime.h"))
print(folder)
print(metadata.distribution("nvidia-cutlass-dsl-libs-base").locate_file("nvidia_cutlass_dsl/lib"))
print(metadata.version("nvidia-cutlass-dsl"))
