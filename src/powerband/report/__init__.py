"""Draw records: terminal text, Markdown, JSON and one self-contained page."""
