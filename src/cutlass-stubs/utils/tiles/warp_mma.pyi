from kiln.utils.tiles.warp_mma import *
