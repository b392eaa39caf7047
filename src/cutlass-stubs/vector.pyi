from kiln.vector import *
