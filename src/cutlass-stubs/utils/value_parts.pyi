from kiln.utils.value_parts import *
