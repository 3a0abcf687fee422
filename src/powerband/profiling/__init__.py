"""Recording the steps of a program that is not ours: a torch.profiler trace of a few of them, straight into locate."""
