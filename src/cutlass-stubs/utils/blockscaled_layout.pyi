from kiln.utils.blockscaled_layout import *
