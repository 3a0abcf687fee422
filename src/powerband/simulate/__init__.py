"""What would happen: a config and a workload in, a run out; pure and deterministic by seed."""
