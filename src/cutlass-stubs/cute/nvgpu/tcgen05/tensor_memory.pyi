from kiln.cute.nvgpu.tcgen05.tensor_memory import *
