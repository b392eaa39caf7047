from kiln.experimental.primitives.fences import *
