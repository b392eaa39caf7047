from kiln.utils.sm90 import *
