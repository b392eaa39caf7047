from kiln.utils.tiles.online_softmax import *
