from kiln.cute.arch.control import *
