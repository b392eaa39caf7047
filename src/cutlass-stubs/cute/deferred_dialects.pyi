from kiln.cute.deferred_dialects import *
