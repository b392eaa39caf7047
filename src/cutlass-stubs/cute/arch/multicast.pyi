from kiln.cute.arch.multicast import *
