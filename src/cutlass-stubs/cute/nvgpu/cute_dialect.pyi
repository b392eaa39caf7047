from kiln.cute.nvgpu.cute_dialect import *
