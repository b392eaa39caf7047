from kiln.cute.arch.inline_assembly import *
