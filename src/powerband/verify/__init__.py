"""Did it help: runs before and after in, verdict with intervals out; pure."""
