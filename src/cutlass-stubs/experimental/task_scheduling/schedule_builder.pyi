from kiln.experimental.task_scheduling.schedule_builder import *
