from kiln.utils.hardware_info import *
