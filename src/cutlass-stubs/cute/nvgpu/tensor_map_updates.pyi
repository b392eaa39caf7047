from kiln.cute.nvgpu.tensor_map_updates import *
