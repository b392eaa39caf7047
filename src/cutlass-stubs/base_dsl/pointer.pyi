from kiln.cute.program.wrapped_values import *
from kiln.cute.tensor.raw_pointer import *
