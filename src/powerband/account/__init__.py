"""Where the bytes go: model, device and config in, ledger out; pure arithmetic."""
