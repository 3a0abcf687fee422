"""powerband: account, locate, tune and verify LLM inference on real engines."""

__version__ = "0.1.0"
