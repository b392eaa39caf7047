from kiln.experimental.task_scheduling.progress import *
