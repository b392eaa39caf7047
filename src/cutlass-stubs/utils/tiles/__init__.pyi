from kiln.utils.tiles import *
