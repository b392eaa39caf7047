from kiln.cute.experimental import *
