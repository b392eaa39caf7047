from kiln.cute.experimental.copies import *
