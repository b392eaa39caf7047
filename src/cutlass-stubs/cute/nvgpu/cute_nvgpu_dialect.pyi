from kiln.cute.nvgpu.cute_nvgpu_dialect import *
