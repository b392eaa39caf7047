from kiln.cute.layout import *
from kiln.cute.layout.int_tuple import *
