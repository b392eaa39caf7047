from kiln.utils.distributed import *
