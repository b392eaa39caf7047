from kiln.cute.math_operators import *
