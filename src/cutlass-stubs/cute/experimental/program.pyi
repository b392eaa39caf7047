from kiln.cute.experimental.program import *
