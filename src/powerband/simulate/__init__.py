"""What would happen: a step-time model, an engine's scheduler, and a simulator that gives the evidence of a run."""
