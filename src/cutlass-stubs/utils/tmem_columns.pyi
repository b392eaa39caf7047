from kiln.utils.tmem_columns import *
