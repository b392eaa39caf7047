"""The `kiln` command. One module per verb; `main.VERBS` lists them."""
