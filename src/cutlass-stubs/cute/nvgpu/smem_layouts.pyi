from kiln.cute.nvgpu.smem_layouts import *
