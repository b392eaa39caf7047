from kiln.base_dsl.native_struct import *
