from kiln.experimental.primitives.mbarriers import *
