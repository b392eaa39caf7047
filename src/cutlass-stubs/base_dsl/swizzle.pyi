from kiln.cute.layout.swizzle import *
