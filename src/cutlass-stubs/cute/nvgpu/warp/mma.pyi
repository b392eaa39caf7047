from kiln.cute.nvgpu.warp.mma import *
