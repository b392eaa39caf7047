from kiln.cute.arch.fence import *
