"""Pictures of layouts, atoms, TMA boxes and operands in shared memory, as SVG and LaTeX; loaded when one is drawn."""
