"""Parts that the verbs share: Cases and contracts, Records and journals, runners and workers, the command line."""
