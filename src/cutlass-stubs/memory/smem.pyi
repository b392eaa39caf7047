from kiln.utils.smem_allocator import *
from kiln.utils.smem_capacity import *
