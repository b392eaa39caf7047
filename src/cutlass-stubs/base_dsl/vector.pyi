from kiln.cute.program.wrapped_values import *
from kiln.vector import *
