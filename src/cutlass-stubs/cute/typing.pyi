from kiln.cute.typing import *
