from kiln.experimental.primitives.words import *
