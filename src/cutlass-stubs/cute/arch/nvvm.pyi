from kiln.cute.arch.nvvm_dialect import *
