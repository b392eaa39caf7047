from kiln.base_dsl.typing import *
