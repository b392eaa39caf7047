from kiln.cute.experimental.pipelines import *
