from kiln.experimental.primitives.matrix_names import *
