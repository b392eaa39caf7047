from kiln.experimental.primitives.names import *
