"""Where the bytes go: what a model, an engine and its settings need of a device's memory. Pure: no I/O."""
