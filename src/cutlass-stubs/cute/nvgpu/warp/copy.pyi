from kiln.cute.nvgpu.warp.copy import *
