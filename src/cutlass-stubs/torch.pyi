from kiln.torch import *
