"""Pictures of layouts, atoms, TMA boxes, operands in shared memory and tensor memory, as SVG and LaTeX; loaded when one is drawn."""
