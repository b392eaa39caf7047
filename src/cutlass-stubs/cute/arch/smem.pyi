from kiln.cute.arch.smem import *
