from kiln.utils.sm100 import *
