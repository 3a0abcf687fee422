"""Evidence for the quality gate: what an engine answers to a task, and how probable it finds a text."""
