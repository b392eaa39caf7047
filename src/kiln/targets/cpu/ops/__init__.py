"""Operations of `cute_nvgpu` as code of this machine: one file for each unit of the hardware."""
