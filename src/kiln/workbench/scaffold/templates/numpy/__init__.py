"""Host halves of the templates for numpy arrays; `kiln new` puts them behind the kernels where PyTorch is missing."""
