from kiln.cute.nvgpu.cuda_dialect import *
