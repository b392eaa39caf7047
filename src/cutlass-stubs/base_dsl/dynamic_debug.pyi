from kiln.base_dsl.value_trees import *
