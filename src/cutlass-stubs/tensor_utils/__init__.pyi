from kiln.utils.layout_enum import *
from kiln.utils.tensor_map_manager import *
