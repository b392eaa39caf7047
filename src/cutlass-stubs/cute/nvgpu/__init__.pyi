from kiln.cute.nvgpu import *
