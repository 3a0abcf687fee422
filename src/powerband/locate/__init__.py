"""Where the time goes: a run and its samples in, breakdown and findings out; pure."""
