from kiln.cute.kernel_records import *
