"""The numeric types: `types` lists them, `scalar` has their operators, `promotion` the type of an operation on two
types; `host` computes outside a trace, `emit` inside one. Use them through `kiln.base_dsl.typing`."""
