from kiln.cute.nvgpu.tma_ops import *
