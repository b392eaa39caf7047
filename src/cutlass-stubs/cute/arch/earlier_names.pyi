from kiln.cute.arch.earlier_names import *
