from kiln.cute.arch.arithmetic import *
