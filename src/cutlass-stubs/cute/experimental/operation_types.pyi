from kiln.cute.experimental.operation_types import *
