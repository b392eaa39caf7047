from kiln.experimental.primitives.copies import *
