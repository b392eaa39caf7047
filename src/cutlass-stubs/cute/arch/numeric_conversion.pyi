from kiln.cute.arch import *
