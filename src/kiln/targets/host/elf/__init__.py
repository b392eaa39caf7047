"""64-bit ELF files: relocatable objects, shared libraries, and a linker that loads objects into memory."""

from .format import *
from .objects import *
