from kiln.utils.tensor_helpers import *
