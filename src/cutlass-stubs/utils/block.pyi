from kiln.utils.block_copies import *
