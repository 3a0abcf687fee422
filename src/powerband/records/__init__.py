"""The nouns that the stages pass to each other: pure data, the metric definitions, the errors."""
