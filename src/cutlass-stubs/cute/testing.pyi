from kiln.cute.testing import *
