"""Makes the helpers beside this file importable in the folders below it."""
