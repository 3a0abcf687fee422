"""Read evidence: of models, devices, hosts and running engines."""
