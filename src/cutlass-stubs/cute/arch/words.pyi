from kiln.cute.arch.words import *
