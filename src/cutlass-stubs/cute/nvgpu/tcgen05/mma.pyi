from kiln.cute.nvgpu.tcgen05.mma import *
