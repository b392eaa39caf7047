from kiln.cute.nvgpu.im2col import *
from kiln.cute.nvgpu.tma_atom import *
