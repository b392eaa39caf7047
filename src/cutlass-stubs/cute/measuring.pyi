from kiln.cute.measuring import *
