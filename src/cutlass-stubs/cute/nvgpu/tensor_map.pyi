from kiln.cute.nvgpu.tensor_map import *
