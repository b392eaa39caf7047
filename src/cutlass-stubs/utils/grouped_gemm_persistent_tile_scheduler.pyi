from kiln.utils.schedulers.grouped_gemm import *
