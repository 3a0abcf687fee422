"""Start, configure, watch and stop an inference engine; one file an engine, one protocol for all (base.py)."""
