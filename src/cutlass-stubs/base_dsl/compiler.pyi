from kiln.base_dsl.compiler import *
