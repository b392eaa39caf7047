from kiln.experimental.primitives.warp import *
