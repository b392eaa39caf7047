from kiln.base_dsl.dsl import *
