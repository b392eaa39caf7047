"""Exported code: where what programs link and include is (`aot_config`)."""
