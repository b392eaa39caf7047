from kiln.cute.atom import *
