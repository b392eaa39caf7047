from kiln.base_dsl import *
