from kiln.base_dsl.arguments import *
