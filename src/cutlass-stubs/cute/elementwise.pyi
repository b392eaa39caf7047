from kiln.cute.elementwise import *
