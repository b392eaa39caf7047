from kiln.cute.testing import *
from kiln.testing import *
