from kiln.cute.arch.modifiers import *
