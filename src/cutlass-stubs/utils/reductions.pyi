from kiln.utils.reductions import *
