from kiln.utils.gemm.sm100 import *
