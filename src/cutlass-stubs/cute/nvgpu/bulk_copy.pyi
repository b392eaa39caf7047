from kiln.cute.nvgpu.bulk_copy import *
