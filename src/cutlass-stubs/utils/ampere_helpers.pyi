from kiln.utils.smem_capacity import *
