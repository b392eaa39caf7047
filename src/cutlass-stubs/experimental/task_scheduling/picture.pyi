from kiln.experimental.task_scheduling.picture import *
