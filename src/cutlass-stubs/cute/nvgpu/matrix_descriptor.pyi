from kiln.cute.nvgpu.matrix_descriptor import *
