from kiln.utils.tensor_map_manager import *
