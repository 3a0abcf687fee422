"""Send requests at their scheduled instants and record when each token came."""
