from kiln.utils.schedulers.raster import *
