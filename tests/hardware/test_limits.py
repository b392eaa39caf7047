"""The rules of launches: what each limit is, and which one a launch breaks."""

from __future__ import annotations

import pytest

from kiln.hardware import architectures, limits
from kiln.hardware.architectures import GENERATIONS, Arch
from kiln.hardware.limits import Needs, Sizes, broken_rule

HOPPER = Arch.sm_90a.generation
ONE = (1, 1, 1)
UNKNOWN = (None, None, None)


@pytest.mark.parametrize(
    ("arch", "kib", "cluster"),
    [
        ("sm_80", 163, 1), ("sm_86", 99, 1), ("sm_87", 163, 1), ("sm_89", 99, 1), ("sm_90a", 227, 16), ("sm_100a", 227, 16),
        ("sm_103a", 227, 16), ("sm_107a", 327, 16), ("sm_120a", 99, 8), ("sm_121a", 99, 8),
    ],
)  # fmt: skip
def test_what_a_block_and_a_cluster_have(arch, kib, cluster):
    of = Arch[arch].generation
    assert (of.smem_per_block, of.cluster) == (kib << 10, cluster)
    assert broken_rule(of, Sizes(ONE, ONE, smem=kib << 10)) is None
    what, limit = broken_rule(of, Sizes(ONE, ONE, smem=(kib << 10) + 1)) or ("", "")
    assert what == f"{(kib << 10) + 1} bytes of shared memory per block"
    assert limit == f"a block has at most {kib << 10} bytes of it on sm_{of.number}, static and dynamic"


@pytest.mark.parametrize("of", GENERATIONS, ids=lambda of: f"sm_{of.number}")
def test_limits_that_all_have(of):
    assert broken_rule(of, Sizes(limits.GRID, (1024, 1, 1))) is None
    assert broken_rule(of, Sizes(ONE, (1, 1024, 1))) is None
    assert broken_rule(of, Sizes(ONE, (16, 1, 64))) is None
    for axis in range(3):
        larger = tuple(limit + (n == axis) for n, limit in enumerate(limits.GRID))
        assert broken_rule(of, Sizes(larger, ONE)) == (
            f"grid {'xyz'[axis]} is {limits.GRID[axis] + 1}",
            f"grid {'xyz'[axis]} is at most {limits.GRID[axis]}",
        )
        larger = tuple(limits.BLOCK[axis] + 1 if n == axis else 1 for n in range(3))
        assert (broken_rule(of, Sizes(ONE, larger)) or "")[0] == f"block {'xyz'[axis]} is {limits.BLOCK[axis] + 1}"
    assert broken_rule(of, Sizes(ONE, (32, 33, 1))) == ("1056 threads per block", "a block has at most 1024 threads")


@pytest.mark.parametrize(
    ("sizes", "needs", "registers", "words"),
    [
        (Sizes((0, 1, 1), ONE), Needs(), 0, "grid x is 0"),
        (Sizes(ONE, (1, -1, 1)), Needs(), 0, "block y is -1"),
        (Sizes(ONE, ONE, (1, 0, 1)), Needs(), 0, "cluster y is 0"),
        (Sizes((17, 1, 1), ONE, (17, 1, 1)), Needs(), 0, "clusters of 17 blocks"),
        (Sizes((16, 2, 2), ONE, (4, 2, 4)), Needs(), 0, "clusters of 32 blocks"),
        (Sizes((3, 1, 1), ONE, (2, 1, 1)), Needs(), 0, "grid x is 3 and cluster x is 2"),
        (Sizes(ONE, ONE, smem=-5), Needs(), 0, "smem is -5"),
        (Sizes(ONE, (256, 1, 1)), Needs(max_threads=128), 0, "256 threads per block, and max_number_threads is 128"),
        (Sizes(ONE, (512, 1, 1)), Needs(), 168, "512 threads of 168 registers each"),
        (Sizes(UNKNOWN, UNKNOWN, UNKNOWN, None), Needs(232_449), 0, "233472 bytes of shared memory per block"),
        (Sizes(ONE, ONE, smem=200_000), Needs(40_000, True), 0, "240960 bytes of shared memory per block"),
        (Sizes(UNKNOWN, (None, None, 65), UNKNOWN, None), Needs(), 0, "block z is 65"),
    ],
)
def test_the_rule_that_a_launch_breaks(sizes, needs, registers, words):
    what, _limit = broken_rule(HOPPER, sizes, needs, registers) or ("", "")
    assert what.splitlines()[0] == words


@pytest.mark.parametrize(
    ("sizes", "needs", "registers"),
    [
        (Sizes((16, 1, 1), ONE, (16, 1, 1)), Needs(), 0),
        (Sizes(ONE, (512, 1, 1)), Needs(max_threads=512), 128),
        (Sizes(ONE, ONE, smem=232_448), Needs(232_448), 255),
        (Sizes(ONE, ONE, smem=191_488), Needs(40_000, True), 255),
        (Sizes(UNKNOWN, UNKNOWN, UNKNOWN, None), Needs(232_448), 255),
    ],
)
def test_launches_that_break_no_rule(sizes, needs, registers):
    assert broken_rule(HOPPER, sizes, needs, registers) is None


def test_memory_of_a_launch():
    allocates, has_more = Needs(65_000), Needs(65_000, True)
    assert [allocates.total(asked) for asked in (0, 65_000, 100_000)] == [65_536, 65_536, 100_000]
    assert [has_more.total(asked) for asked in (0, 100)] == [65_536, 65_636]
    assert (allocates.room(HOPPER), has_more.room(HOPPER)) == (232_448, 232_448 - 65_536)
    assert Needs(1000).total(0) == 1000


def test_needs_as_text():
    needs = Needs(65_000, True, 256, (("a.py:3", 100, 2), ("b.py:4", 64_000, 1)))
    assert architectures.decoded_needs(needs.encoded(HOPPER)) == (HOPPER, needs)
    assert needs.listing(50) == (
        "\n  a.py:3: 2 x 100 bytes\n  b.py:4: 64000 bytes\n  for alignment: 1336 bytes"
        "\n  launch(smem=50): 50 bytes of dynamic shared memory besides"
    )
