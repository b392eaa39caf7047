from kiln.cute.nvgpu.tcgen05.copy import *
