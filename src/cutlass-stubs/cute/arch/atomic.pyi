from kiln.cute.arch.atomic import *
