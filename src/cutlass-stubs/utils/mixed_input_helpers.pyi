from kiln.utils.mixed_input_helpers import *
