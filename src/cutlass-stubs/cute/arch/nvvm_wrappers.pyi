from kiln.cute.arch.nvvm_wrappers import *
