from kiln.base_dsl import *
from kiln.base_dsl.compiler import *
from kiln.base_dsl.diagnostics import *
from kiln.base_dsl.ir_files import *
from kiln.base_dsl.value_trees import *
from kiln.cute.program.compiling import *
from kiln.cute.tensor.raw_pointer import *
from kiln.cutlass_dsl import *
