from kiln.cute.core import *
