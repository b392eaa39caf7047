from kiln.cute.arch.values import *
