from kiln.experimental.task_scheduling.pipelines import *
