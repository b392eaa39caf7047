from kiln.experimental.task_scheduling.validation import *
