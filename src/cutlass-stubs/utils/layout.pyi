from kiln.utils.layout_enum import *
