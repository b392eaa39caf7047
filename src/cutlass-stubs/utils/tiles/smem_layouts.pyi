from kiln.utils.tiles.smem_layouts import *
