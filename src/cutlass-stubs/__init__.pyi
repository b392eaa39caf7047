from kiln import *

__version__: str
