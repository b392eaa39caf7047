from kiln.hardware.architectures import *
