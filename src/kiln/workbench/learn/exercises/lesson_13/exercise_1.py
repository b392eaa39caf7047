"""Exercise 1 of lesson 13: columns and lanes of tensor memory."""


def columns_to_allocate(n: int, accumulators: int = 1) -> int:
    """Return how many columns to allocate for some f32 accumulators of 128 x n: a power of two, from 32 to 512.

    More than 512 is a ValueError.
    """
    needed = n * accumulators
    # TODO: the least power of two that is at least 32 and at least `needed`; ValueError beyond 512
    columns = 32
    while columns < needed:
        columns *= 2
    if columns > 512:
        raise ValueError(f"{needed} columns are more than the 512 of tensor memory")
    # END
    return columns


def reader_of(row: int) -> tuple[int, int]:
    """Return the warp and the lane of that warp that read a row of an accumulator of 128 rows."""
    # TODO: warp w sees lanes 32 w to 32 w + 31 of tensor memory
    warp = row // 32
    lane = row % 32
    # END
    return warp, lane
