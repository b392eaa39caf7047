"""The numeric types: `types` lists them, `scalar` is what a value does, `promotion` how two types meet,
`host` computes outside a trace, `emit` inside one. Use them through `kiln.base_dsl.typing`."""
