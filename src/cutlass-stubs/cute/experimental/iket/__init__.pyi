from kiln.cute.experimental.iket import *
