from kiln.utils.tiles.warp_tiles import *
