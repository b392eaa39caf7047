from kiln.cute.arch.cluster import *
