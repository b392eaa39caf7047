"""`python -m kiln` is the `kiln` command."""

import sys

from kiln.workbench.main import main

if __name__ == "__main__":
    sys.exit(main())
