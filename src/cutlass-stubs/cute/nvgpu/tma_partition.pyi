from kiln.cute.nvgpu.tma_partition import *
