from kiln import *
