from kiln.utils.gemm import *
