from kiln.utils.sm107 import *
