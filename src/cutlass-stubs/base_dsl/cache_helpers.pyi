from kiln.base_dsl.ir_files import *
