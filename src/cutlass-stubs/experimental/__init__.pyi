from kiln.experimental import *
