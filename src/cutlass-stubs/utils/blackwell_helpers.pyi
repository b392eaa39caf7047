from kiln.utils.blackwell_helpers import *
