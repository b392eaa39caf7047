from kiln.cute.experimental.tma import *
