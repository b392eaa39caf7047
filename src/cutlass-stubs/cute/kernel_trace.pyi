from kiln.cute.kernel_trace import *
