from kiln.cute.math import *
