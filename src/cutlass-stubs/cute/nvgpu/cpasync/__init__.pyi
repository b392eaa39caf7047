from kiln.cute.nvgpu.cpasync import *
