from kiln.cute.arch.warp import *
