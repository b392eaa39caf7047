"""Names that CuTe DSL had before 4.8, which programs still use."""

from __future__ import annotations

from ...hardware.architectures import generation_of

SM100_TMEM_CAPACITY_COLUMNS = generation_of("sm_100").tmem_columns
"""The columns of tensor memory that an SM of sm_100 has."""
SM100_TMEM_MIN_ALLOC_COLUMNS = 32
"""The fewest columns of tensor memory that can be allocated."""
