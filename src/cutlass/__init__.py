"""Nothing but an alias: `import cutlass.cute` gives `kiln.cute`, the same module object. See `kiln._alias`."""

import sys

import kiln
from kiln import _alias

_alias.install()
_alias.warn_of_rivals(stacklevel=2)
sys.modules[__name__] = kiln  # the import statement that brought us here binds what it finds under our name
