"""What `kiln new` writes: one contract per kind of kernel. Each is a program as it is; `my_kernel` is replaced."""
