from kiln.cute.program.stages import *
