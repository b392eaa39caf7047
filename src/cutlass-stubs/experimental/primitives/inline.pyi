from kiln.experimental.primitives.inline import *
