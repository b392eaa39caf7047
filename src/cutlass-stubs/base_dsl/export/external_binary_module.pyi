from kiln.cute.host.runtime import *
