from kiln.experimental.primitives.matrices import *
