from kiln.cute.host_math import *
