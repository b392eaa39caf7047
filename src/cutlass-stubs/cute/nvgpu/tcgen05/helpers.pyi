from kiln.cute.nvgpu.tcgen05 import *
