from kiln.cute.arch.block_barrier import *
