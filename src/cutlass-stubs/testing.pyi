from kiln.testing import *
