from kiln.utils.tmem_allocator import *
