from kiln.cute.nvgpu.common import *
