from kiln.experimental.primitives.barriers import *
