"""Templates of `kiln new`: one contract per kind of kernel. Each is a working program; `my_kernel` is replaced."""
