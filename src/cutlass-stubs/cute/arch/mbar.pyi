from kiln.cute.arch.mbarrier import *
