from kiln.cute.nvgpu.warp import *
