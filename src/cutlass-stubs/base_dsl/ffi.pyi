from kiln.cute.ffi import *
