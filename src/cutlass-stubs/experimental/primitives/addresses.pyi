from kiln.experimental.primitives.addresses import *
