from kiln.experimental.primitives.accesses import *
