from kiln.utils.smem_allocator import *
