from kiln.utils.tiles.staged_tile import *
