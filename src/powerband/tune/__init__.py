"""What to change: asks for the next config, is told what it did; never runs anything."""
