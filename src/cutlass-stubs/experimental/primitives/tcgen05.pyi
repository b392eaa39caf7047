from kiln.experimental.primitives.tcgen05 import *
