from kiln.cute.nvgpu.warpgroup import *
