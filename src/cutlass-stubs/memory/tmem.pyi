from kiln.utils.tmem_allocator import *
from kiln.utils.tmem_columns import *
