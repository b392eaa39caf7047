from kiln.cute.tensor.array import *
