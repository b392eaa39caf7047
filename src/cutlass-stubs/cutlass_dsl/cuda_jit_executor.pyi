from kiln.cutlass_dsl import *
