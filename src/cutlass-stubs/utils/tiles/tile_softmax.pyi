from kiln.utils.tiles.tile_softmax import *
