from kiln.experimental.primitives import *
