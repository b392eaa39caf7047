from kiln.base_dsl.compiler import *
from kiln.base_dsl.options import *
from kiln.cute.program.compiling import *
