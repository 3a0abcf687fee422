"""What to change: a space of settings, what can be left untried, and a search that asks and is told."""
