from kiln.utils.hopper_helpers import *
