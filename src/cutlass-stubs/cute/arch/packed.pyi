from kiln.cute.arch.packed import *
