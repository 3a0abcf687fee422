"""Keep evidence: the journal and one folder of raw files per run."""
