from kiln.cute.nvgpu.im2col import *
