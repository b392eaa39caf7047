from kiln.experimental.primitives.clusters import *
