"""Order, fetch, cache, collate, prefetch: batches of a store at memory speed."""
