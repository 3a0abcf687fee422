"""How wide text for a terminal may be, and lines that keep to it."""

import textwrap

PIPE_WIDTH = 120  # where no terminal says how wide it is


def wrap(line: str, width: int, hang: int) -> str:
    """The line at word boundaries, what goes on ``hang`` blanks in; a longer word stays whole, to be copied."""
    return textwrap.fill(line, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False)
