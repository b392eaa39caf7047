from kiln.cute.nvgpu.tma_atom import *
