from kiln.utils.rubin_helpers import *
