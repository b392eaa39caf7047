from kiln.cute.runtime import *
