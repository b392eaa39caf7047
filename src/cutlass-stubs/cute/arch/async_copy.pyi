from kiln.cute.arch.async_copy import *
