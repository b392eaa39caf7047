from kiln.experimental.primitives.conversions import *
