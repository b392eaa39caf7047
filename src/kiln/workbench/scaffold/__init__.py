"""`kiln new` and `kiln import`: they write packages that all verbs work on."""
