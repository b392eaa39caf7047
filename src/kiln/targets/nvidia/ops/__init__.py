"""Operations as device code: one file for each unit of the hardware."""
