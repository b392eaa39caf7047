"""The clock: how long a kernel takes on a GPU, predicted from what the GPU's units were measured to take."""
