from kiln.utils.gemm.tensor_utils import *
