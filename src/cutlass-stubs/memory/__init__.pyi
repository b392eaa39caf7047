from kiln.utils.smem_allocator import *
from kiln.utils.smem_capacity import *
from kiln.utils.tmem_allocator import *
from kiln.utils.tmem_columns import *
