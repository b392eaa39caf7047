from kiln.experimental.primitives.packed import *
