from kiln.cute.nvgpu.ptx_types import *
