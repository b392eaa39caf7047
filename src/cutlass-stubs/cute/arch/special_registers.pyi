from kiln.cute.arch.special_registers import *
