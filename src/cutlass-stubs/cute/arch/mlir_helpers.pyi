from kiln.cute.arch.mlir_helpers import *
