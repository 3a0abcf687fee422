"""Draw records: terminal text, Markdown and self-contained pages."""
