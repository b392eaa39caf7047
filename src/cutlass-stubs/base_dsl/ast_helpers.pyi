from kiln.cute.program.control import *
from kiln.cutlass_dsl import *
