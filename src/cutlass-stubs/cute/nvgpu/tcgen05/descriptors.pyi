from kiln.cute.nvgpu.tcgen05.descriptors import *
