from kiln.cute.program.control import *
