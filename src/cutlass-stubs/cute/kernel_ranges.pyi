from kiln.cute.kernel_ranges import *
