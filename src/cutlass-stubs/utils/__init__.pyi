from kiln.utils import *
