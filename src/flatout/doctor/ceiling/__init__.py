"""The most that any cure of data could gain: batches in memory replayed, the loader run alone."""
