from kiln.experimental.task_scheduling.resources import *
