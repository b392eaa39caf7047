from kiln.cute.arch.math_dialect import *
