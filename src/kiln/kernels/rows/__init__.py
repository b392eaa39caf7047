"""Functions of the rows of a matrix, and their gradients: softmax, norms."""
