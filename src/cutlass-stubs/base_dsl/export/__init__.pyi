from kiln.cute.export import *
