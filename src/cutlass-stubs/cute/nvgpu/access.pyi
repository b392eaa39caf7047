from kiln.cute.nvgpu.access import *
