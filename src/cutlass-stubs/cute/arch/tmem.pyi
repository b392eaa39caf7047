from kiln.cute.arch.tensor_memory import *
