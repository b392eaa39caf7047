"""Exercise 1 of lesson 0: how many blocks do n elements need, and how many threads of the last one are idle?"""


def launch_for(n: int, threads: int) -> tuple[int, int]:
    """Return the number of blocks of `threads` threads for n elements, and the idle threads of the last block."""
    # TODO: divide and round up, with integers only; then count the threads that have no element
    blocks = -(-n // threads)
    idle = blocks * threads - n
    # END
    return blocks, idle
